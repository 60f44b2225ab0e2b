"""narrowcast.megatron without megatron-core, and with versions that it was not written for."""

import subprocess
import sys

VERSIONS = """
import sys
from pathlib import Path
import narrowcast
assert "megatron" not in sys.modules and "narrowcast.megatron" not in sys.modules

def fails():
    try:
        import narrowcast.megatron
    except ImportError as error:
        assert error.__suppress_context__ or error.__context__ is None
        print(error)
    for name in [name for name in sys.modules if name.split(".")[0] == "megatron"]:
        del sys.modules[name]

sys.modules["megatron"] = None
fails()
core = Path(sys.argv[1], "megatron", "core")
core.mkdir(parents=True)
(core.parent / "__init__.py").touch()
(core / "__init__.py").write_text("import nowhere_to_be_found")
sys.path.insert(0, sys.argv[1])
for version in ("0.15.3", "0.160.0", "0.16.9"):
    (core / "package_info.py").write_text(f"__version__ = {version!r}")
    fails()
"""


def test_versions(tmp_path):
    """narrowcast alone imports no megatron-core; a wrong one is told in one sentence."""
    result = subprocess.run(
        [sys.executable, "-c", VERSIONS, str(tmp_path)], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    missing, old, new, broken = result.stdout.splitlines()
    assert "not installed: pip install megatron-core==" in missing
    assert "works with megatron-core 0.16.x" in old
    assert "0.15.3 is installed" in old
    assert "0.160.0 is installed" in new
    assert "0.16.9" in broken
    assert "nowhere_to_be_found" in broken
