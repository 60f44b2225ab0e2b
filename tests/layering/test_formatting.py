"""The sources are as the formatters leave them. `make format` mends every failure here."""

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sources import CPP, ROOT, files

CLANG_FORMAT = 14  # other versions break lines elsewhere


def clang_format():
    """clang-format of the version that the tree is formatted with, or None."""
    beside = Path(sys.executable).parent / "clang-format"
    for command in (beside, "clang-format-14", "clang-format"):
        if found := shutil.which(command):
            version = subprocess.run([found, "--version"], capture_output=True, text=True).stdout
            if re.search(rf"version {CLANG_FORMAT}\.", version):
                return found
    return None


def run(*command):
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return result.returncode, result.stdout + result.stderr


def test_cpp_is_formatted():
    formatter = clang_format()
    if formatter is None:
        pytest.skip(f"no clang-format {CLANG_FORMAT} here")
    paths = files(CPP)
    assert paths
    # Its --dry-run also reports namespace comments that it replaces by themselves.
    if not are_formatted(formatter, paths):
        wrong = [str(path) for path in paths if not are_formatted(formatter, [path])]
        assert not wrong, f"`make format` mends these: {' '.join(wrong)}"


def are_formatted(formatter, paths):
    status, output = run(formatter, *map(str, paths))
    assert status == 0, output
    return output == "".join((ROOT / path).read_text(encoding="utf-8") for path in paths)


@pytest.mark.parametrize("command", [("check", "--output-format=concise"), ("format", "--check")])
def test_python_is_formatted(command):
    if importlib.util.find_spec("ruff") is None:
        pytest.skip("no ruff here")
    status, output = run(sys.executable, "-m", "ruff", *command, "--no-cache", ".")
    wrong = [line for line in output.splitlines() if re.match(r"\S+:\d+:\d+: |\s*--> ", line)]
    assert status == 0, "`make format` mends this, or most of it:\n" + "\n".join(wrong or [output])
