"""Any combination of the vocabulary is either refused for a named reason, or gives the bytes that
docs/numerics.md defines: specs drawn at random, built outside the tree, against the reference.

NARROWCAST_DRAWN=60 draws so many, and NARROWCAST_SEED=7 others; the specs and plugins are in
pytest's temporary folder.
"""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import drawn_specs

COUNT = int(os.environ.get("NARROWCAST_DRAWN", "5"))
SEED = int(os.environ.get("NARROWCAST_SEED", "1"))


def run(*command):
    return subprocess.run(
        [*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def write(spec, folder):
    path = folder / f"{spec['format']}.toml"
    path.write_text(drawn_specs.text(spec))
    return path


def test_a_spec_is_refused_for_exactly_its_faults(generator, tmp_path):
    rng = random.Random(SEED)
    refused = set()
    for i in range(300):
        spec = drawn_specs.any_spec(f"any_{i}", rng)
        path, expected = write(spec, tmp_path), drawn_specs.faults(spec)
        answer = run(generator, "--check-specs", path)
        found = {reason for reason in drawn_specs.REASONS if reason in answer.stdout}
        assert found == expected, f"{drawn_specs.text(spec)}\n{answer.stdout}"
        assert answer.returncode == bool(expected), f"{drawn_specs.text(spec)}\n{answer.stdout}"
        refused |= expected
    assert refused == set(drawn_specs.REASONS), "too few draws to meet every reason"


@pytest.mark.slow
def test_what_is_not_refused_gives_the_defined_bytes(generator, tmp_path):
    specs = list(drawn_specs.defined_specs(COUNT, random.Random(SEED)))
    assert not any(map(drawn_specs.faults, specs))
    paths = [write(spec, tmp_path) for spec in specs]
    plugins = tmp_path / "plugins"
    gpu = "on" if torch.cuda.is_available() else "off"
    command = ("build", *paths, "-o", plugins, "--baseline", "--gpu", gpu)
    answer = run(sys.executable, "-m", "narrowcast", *command)
    assert answer.returncode == 0, answer.stdout
    compare = Path(drawn_specs.__file__).with_name("compare_formats.py")
    answer = run(sys.executable, compare, plugins, *paths)
    assert answer.returncode == 0, answer.stdout
