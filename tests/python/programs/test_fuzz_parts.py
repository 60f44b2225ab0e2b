"""The fuzz target of loaded parts: some inputs, always the same, and faults that it finds."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TARGET = Path(__file__).parents[2] / "fuzz" / "fuzz_parts.py"
# Runs the target in an interpreter where one thing is broken.
BROKEN = """
import runpy, sys
from narrowcast.tensor import checks
{fault}
sys.argv = sys.argv[1:]
sys.path.insert(0, {folder!r})
runpy.run_path(sys.argv[0], run_name="__main__")
"""
FAULTS = {
    "shapes": "checks._check_like = lambda *parts: None",
    "a crash": "import os; checks._check_flattened = lambda *parts: os.kill(os.getpid(), 11)",
}


def run(*arguments):
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def test_some_inputs():
    answer = run(TARGET, "--inputs", 200)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "200 inputs" in answer.stdout and "; 0 failures" in answer.stdout


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_found(name):
    program = BROKEN.format(fault=FAULTS[name], folder=str(TARGET.parent))
    answer = run("-c", program, TARGET, "--inputs", 3000)
    assert answer.returncode == 1, answer.stdout + answer.stderr
    assert "FAILED: input " in answer.stdout
    assert ("ends by SIGSEGV" in answer.stdout) == (name == "a crash")


def test_one_input():
    answer = run(TARGET, "--only", 7)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert answer.stdout.startswith("changed:")
