"""Files of plugins that were damaged: what nc.load_plugin takes nothing of."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import narrowcast as nc

ROOT = Path(__file__).parents[3]
BUILD = Path(os.environ.get("NARROWCAST_BUILD", ROOT / "build"))

# In a process of its own, which a file that is mapped in spite of its damage could end. The last
# file is whole: it is found out after it was loaded, and so all before it were not.
DAMAGE = """
import os, random, struct, sys
import narrowcast as nc

path = sys.argv[1]
whole = open(path, "rb").read()
start, = struct.unpack_from("<Q", whole, 32)
size, count = struct.unpack_from("<HH", whole, 54)
draw = random.Random(1)

def refusal():
    try:
        return str(nc.load_plugin(path))
    except nc.PluginError as error:
        return str(error)

def check(what):
    reason = refusal()
    if "is damaged" not in reason:
        # Said by what reads the file, not by the system's loader or of a table.
        known = ("is cut short", "is not")
        assert any(words in reason for words in known), (what, reason)
    assert "cannot be loaded" not in reason and "table" not in reason, (what, reason)

headers = [*range(64), *range(start, start + size * count)]
bits = [(byte, bit) for byte in headers for bit in range(8)]
bits += [(draw.randrange(len(whole)), draw.randrange(8)) for _ in range(3000)]
with open(path, "r+b", buffering=0) as file:
    for byte, bit in bits:
        os.pwrite(file.fileno(), bytes([whole[byte] ^ 1 << bit]), byte)
        check(("bit", bit, "of byte", byte))
        os.pwrite(file.fileno(), whole[byte:byte + 1], byte)
    for length in sorted((draw.randrange(len(whole)) for _ in range(300)), reverse=True):
        os.ftruncate(file.fileno(), length)
        check(("length", length))
    os.pwrite(file.fileno(), whole, 0)
assert "has already brought" in refusal(), refusal()
print(len(headers) >= 64 + 56 * 5)
"""


@pytest.fixture
def plugin(tmp_path):
    """A copy of a plugin, whose format is loaded."""
    return Path(shutil.copy(nc.format(nc.formats()[0]).path, tmp_path / "copy.so"))


def test_a_flip_of_any_bit_of_the_headers_and_of_others_and_truncations(plugin):
    answer = subprocess.run(
        [sys.executable, "-c", DAMAGE, plugin], capture_output=True, text=True, timeout=300
    )
    assert (answer.returncode, answer.stdout) == (0, "True\n"), answer.stderr


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
