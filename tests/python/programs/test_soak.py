"""The soak: a few rounds, always the same, and faults that it finds."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).parents[2] / "soak" / "soak.py"


def run(*arguments):
    return subprocess.run(
        [sys.executable, str(SOAK), "--most-ranks=2", "--seed=2", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def test_some_rounds():
    answer = run("--rounds", 3)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "3 rounds" in answer.stdout and "; 0 failures" in answer.stdout


def run_with(fault, *arguments):
    """With a seed by which a scale spans the tensor from the first round on."""
    return run("--fault", fault, "--seed=4", "--rounds", 60, "--failures", 1, *arguments)


@pytest.mark.parametrize(
    ("fault", "what"), [("unreduced-amax", "tensor_amax"), ("failure-forgotten", "is stale")]
)
def test_faults_are_found(fault, what):
    answer = run_with(fault)
    assert answer.returncode == 1, answer.stdout + answer.stderr
    assert re.search(f"^FAILED: round .* {what} of .* not ", answer.stdout, re.MULTILINE)


def test_a_hang_is_found():
    """The message has the stacks of the ranks."""
    answer = run_with("lost-rank", "--patience", 5)
    assert answer.returncode == 1, answer.stdout + answer.stderr
    assert " hang\nrank 0:" in answer.stdout and "in step" in answer.stdout
