"""The programs that pages begin with run as they stand: that for Megatron-Core as on a GPU."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import narrowcast as nc

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
# The bytes are those of a cast of the whole value.
AFTER_FLAT_SHARDS = """
parts = [None] * 2
dist.all_gather_object(parts, masters[0])
whole = nc.quantize(torch.cat(parts).view(300, 512), "mxfp8_e4m3")
for usage in ("rowwise", "columnwise"):
    for name in (f"{usage}_data", f"{usage}_scale_inv"):
        assert torch.equal(getattr(weights[0], name), getattr(whole, name)), name
"""
AFTER_SHARDING = """
assert nc.fits(model, "mxfp8_e4m3", mesh)
weights = [p for p in model.parameters() if isinstance(p.to_local(), nc.MasterWeight)]
assert len(weights) == 2
assert all(optimizer.state[p]["step"] == 3 for p in model.parameters())
dist.destroy_process_group()
"""
AFTER_MEGATRON = """
assert sum(isinstance(p, narrowcast.QuantizedTensor) for p in gpt.parameters()) == 8
assert loss < 5, loss  # of 256 words taken at random: 5.5
dist.destroy_process_group()
"""


def first_program(page):
    return re.search(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.S)[1]


def run(path, text, ranks, **environment):
    path.write_text(text)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    command = [sys.executable, *TORCHRUN, str(ranks), str(path)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr


def test_flat_shards_and_sharding(tmp_path):
    programs = first_program("flat-shards.md"), AFTER_FLAT_SHARDS
    begin = 'dist.init_process_group("gloo")'  # once for both
    programs += first_program("sharding.md").replace(begin, "pass"), AFTER_SHARDING
    run(tmp_path / "both.py", "".join(programs), 2)


@pytest.mark.slow
def test_megatron(tmp_path):
    pytest.importorskip("megatron.core", reason="megatron-core is not installed")
    program = first_program("megatron.md").replace('"nccl"', '"gloo"')
    program = re.sub(r"torch.cuda.set_device.*", "import narrowcast", program)
    within = "from megatron_on_cpu import on_cpu\ncontext = on_cpu()\ncontext.__enter__()\n"
    folders = os.pathsep.join([str(ROOT / "examples"), os.environ.get("PYTHONPATH", "")])
    run(tmp_path / "gpt.py", within + program + AFTER_MEGATRON, 1, PYTHONPATH=folders)


def test_checkpoints(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(first_program("checkpoints.md"), names)
    saved, loaded = ({**names[name].state_dict()} for name in ("model", "other"))
    assert len(saved) == 4
    assert all(torch.equal(saved[name], loaded[name]) for name in saved)
    moments = [
        [state["exp_avg"] for state in names[name].state.values()] for name in ("optimizer", "new")
    ]
    assert all(torch.equal(one, other) for one, other in zip(*moments, strict=True))
    quantized = [p for p in names["other"].parameters() if isinstance(p, nc.MasterWeight)]
    assert {p.format.name for p in quantized} == {"nvfp4"}


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
