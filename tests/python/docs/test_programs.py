"""The programs that pages begin with run as they stand."""

import os
import re
import subprocess
import sys
from pathlib import Path

import torch

DOCS = Path(__file__).parents[3] / "docs"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
# The bytes are those of a cast of the whole value.
AFTER_FLAT_SHARDS = """
parts = [None] * 2
dist.all_gather_object(parts, masters[0])
whole = nc.quantize(torch.cat(parts).view(300, 512), "mxfp8_e4m3")
for usage in ("rowwise", "columnwise"):
    for name in (f"{usage}_data", f"{usage}_scale_inv"):
        assert torch.equal(getattr(weights[0], name), getattr(whole, name)), name
dist.destroy_process_group()
"""


def first_program(page):
    return re.search(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.S)[1]


def test_flat_shards(tmp_path):
    path = tmp_path / "flat.py"
    path.write_text(first_program("flat-shards.md") + AFTER_FLAT_SHARDS)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *TORCHRUN, str(path)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr


def test_publishing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(first_program("publishing.md"), names)
    trained, loaded = (
        dict(names["nc"].export_tensors(names[name], "mxfp8")) for name in ("model", "other")
    )
    assert len(trained) == 6
    assert trained.keys() == loaded.keys()
    assert all(torch.equal(trained[name], loaded[name]) for name in trained)
