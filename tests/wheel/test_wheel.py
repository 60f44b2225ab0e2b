"""The published wheel, in an empty environment where no compiler is found: it installs, trains, and
makes the bytes of the build that runs these tests. `make test-wheel` says where wheels lie, and
which torches to try, which are downloaded.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from narrowcast import registry

WHEELS = os.environ.get("NARROWCAST_WHEELS")  # their folder
TORCHES = os.environ.get("NARROWCAST_WHEEL_TORCHES", "").split()  # "2.11 2.15"
PYTHON = f"cp{sys.version_info.major}{sys.version_info.minor}"
TRAIN = Path(__file__).with_name("train.py")
SPEC = """
format = "mine"
summary = "FP8 in blocks of 4x8"
reference = "none"
vocabulary = 1
element = {type = "e4m3"}
scale = {type = "e8m0"}
rowwise = {block = [4, 8]}
columnwise = {block = [4, 8]}
quantize = {scale = "floor"}
matmul = {input = "self", gradient = "mxfp8_e5m2"}
"""

pytestmark = [
    pytest.mark.skipif(not WHEELS, reason="needs a wheel: make wheel, then make test-wheel"),
    pytest.mark.timeout(1800),
]


class Environment:
    """A virtual environment with the wheel and one torch."""

    def __init__(self, folder: Path, wheel: Path, torch: str):
        self.programs = folder / "bin"
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        # pip may compile nothing: neither the wheel nor what it needs.
        install = ["install", "-q", "--only-binary=:all:", wheel, f"torch=={torch}.*"]
        answer = self.run("python", "-m", "pip", *install)
        assert answer.returncode == 0, answer.stderr

    def run(self, program: str, *words: str | Path) -> subprocess.CompletedProcess:
        """No folder of programs but the environment's own, no package of this Python's."""
        hidden = ("PATH", "PYTHONPATH", "CUDA_HOME", "CXX", "NARROWCAST_PLUGINS")
        environment = {key: value for key, value in os.environ.items() if key not in hidden}
        environment |= {"PATH": str(self.programs), "CUDA_HOME": "/nonexistent"}
        command = [self.programs / program, *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def wheel():
    """The newest of this Python."""
    found = Path(WHEELS).resolve().glob(f"narrowcast-*-{PYTHON}-manylinux*_x86_64.whl")
    newest = max(found, key=os.path.getmtime, default=None)
    assert newest, f"{WHEELS} has no wheel for this Python ({PYTHON}): make wheel"
    return newest


@pytest.fixture(scope="module", params=TORCHES)
def environment(request, wheel, tmp_path_factory):
    return Environment(tmp_path_factory.mktemp("environment"), wheel, request.param)


@pytest.fixture(scope="module")
def formats():
    """Those of this build. A wheel has them all."""
    return sorted(path.stem for path in registry.shipped_plugins())


def test_nothing_is_missing(environment):
    answer = environment.run("python", "-m", "pip", "check")
    assert answer.returncode == 0, answer.stdout


def test_formats_are_listed(environment, formats):
    answer = environment.run("narrowcast", "list")
    assert answer.returncode == 0, answer.stderr
    assert [line.split()[0] for line in answer.stdout.splitlines()[1:]] == formats
    for format in formats:
        answer = environment.run("narrowcast", "show", format)
        assert answer.returncode == 0, answer.stderr
        assert answer.stdout.startswith(f"{format}: ")


def test_training(environment, formats):
    """Losses fall, and the bytes are those of this build."""
    answer = environment.run("python", TRAIN, *formats)
    assert answer.returncode == 0, answer.stderr
    ours = subprocess.run([sys.executable, TRAIN, *formats], capture_output=True, text=True)
    assert ours.returncode == 0, ours.stderr
    lines = [line.split() for line in answer.stdout.splitlines()]
    assert [line[0] for line in lines] == formats
    assert [line[-1] for line in lines] == [line.split()[-1] for line in ours.stdout.splitlines()]
    for _, *losses, _ in lines:
        assert sorted(map(float, losses), reverse=True) == [*map(float, losses)]
        assert losses[0] != losses[-1]


def test_what_a_format_of_ones_own_lacks(environment, tmp_path):
    """The generator is there and needs nothing; of what is not, there is one sentence."""
    spec = tmp_path / "mine.toml"
    spec.write_text(SPEC)
    answer = environment.run("narrowcast", "check", spec)
    assert answer.returncode == 0, answer.stderr
    answer = environment.run("narrowcast", "build", spec, "-o", tmp_path / "out")
    assert answer.returncode == 1
    (sentence,) = answer.stderr.splitlines()
    assert sentence.startswith("narrowcast: there is no cmake, no ninja or make, no C++ compiler")
    assert "pip install cmake ninja" in sentence
