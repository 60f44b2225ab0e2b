"""Files of plugins that a tool has changed, or would change."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import narrowcast as nc

ROOT = Path(__file__).parents[3]
BUILD = Path(os.environ.get("NARROWCAST_BUILD", ROOT / "build"))


@pytest.fixture
def plugin(tmp_path):
    """A copy of a plugin, whose format is loaded."""
    return Path(shutil.copy(nc.format(nc.formats()[0]).path, tmp_path / "copy.so"))


def test_a_stripped_plugin_says_what_may_have_changed_it(plugin):
    if shutil.which("strip") is None:
        pytest.skip("needs strip")
    subprocess.run(["strip", plugin], check=True)
    with pytest.raises(nc.PluginError, match=r"copy\.so' is cut short,.*, or a tool such as strip"):
        nc.load_plugin(plugin)


def test_a_second_trailer_takes_the_place_of_the_first(plugin):
    trailer = BUILD / "runtime/narrowcast_trailer"
    if not trailer.exists():
        pytest.skip(f"needs a build in {BUILD}")
    before = plugin.read_bytes()
    subprocess.run([trailer, plugin], check=True)
    assert plugin.read_bytes() == before
    answer = subprocess.run([trailer, plugin.parent], capture_output=True, text=True)
    assert answer.returncode == 1
    assert "is not a regular file" in answer.stderr
