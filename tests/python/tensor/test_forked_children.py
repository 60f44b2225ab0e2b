"""Casts in a forked child, whose parent's threads it does not have (docs/decisions/0005)."""

import subprocess
import sys

import pytest

# A process of its own: a pool of threads that other tests have made would be the fork's too.
PROGRAM = """
import os, sys, torch
import narrowcast as nc

torch.set_num_threads(2)
value = torch.randn(1024, 1024)
cast = lambda: nc.quantize(value, "mxfp8_e4m3").rowwise_data
before = cast() if sys.argv[1] == "after a cast" else None
child = os.fork()
if child == 0:
    if before is not None:
        torch.set_num_threads(1)
    torch.save(cast(), sys.argv[2])
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert torch.equal(cast(), torch.load(sys.argv[2]))
"""


@pytest.mark.parametrize("when", ["before a cast", "after a cast"])
def test_a_child_makes_the_same_bytes(tmp_path, when):
    """With threads of its own where the parent had none; else with one, as data loaders have."""
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, when, str(tmp_path / "bytes")]
    subprocess.run(command, check=True, timeout=120)
