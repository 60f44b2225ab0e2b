"""narrowcast.megatron with a megatron-core that it was not written for."""

import subprocess
import sys

import pytest

pytest.importorskip("megatron.core", reason="megatron-core is not installed")

ANOTHER = """
import sys
import narrowcast
assert "megatron" not in sys.modules and "narrowcast.megatron" not in sys.modules
import megatron.core
megatron.core.__version__ = "0.15.3"
import narrowcast.megatron
"""


def test_another_version():
    result = subprocess.run([sys.executable, "-c", ANOTHER], capture_output=True, text=True)
    last = result.stderr.splitlines()[-1]
    assert "works with megatron-core 0.16.x, and 0.15.3 is installed" in last, last
