"""The README's program runs as it stands, on two ranks, and for a format that is gathered in
another way, with the model and the data of docs/installing.md; its picture shows the formats'
facts; the files that it names are there.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
README = ROOT / "README.md"
INSTALLING = ROOT / "docs" / "installing.md"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
AFTER = """
converted = [p for p in model.parameters() if isinstance(p.to_local(), nc.MasterWeight)]
assert len(converted) == 3
assert all(optimizer.state[p]["step"] == len(batches) for p in model.parameters())
assert loss < 1, loss  # of 32 classes: 3.5 at first
"""


def program():
    (model,), (rest,) = map(programs, (INSTALLING, README))
    assert 'nc.convert(model, "fp8_e4m3", matmul="scaled")' in rest
    return f"{model}\n{rest}"


def programs(page):
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize(
    ("ranks", "name", "is_compiled"), [(2, "fp8_e4m3", True), (1, "mxfp8_e4m3", False)]
)
def test_program(ranks, name, is_compiled, tmp_path):
    path = tmp_path / "train.py"
    path.write_text(program().replace("fp8_e4m3", name) + AFTER)
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    environment["TORCH_COMPILE_DISABLE"] = "0" if is_compiled else "1"
    command = [sys.executable, *TORCHRUN, str(ranks), str(path)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr


def test_picture_shows_the_facts(tmp_path):
    drawn = tmp_path / "overview.svg"
    command = [sys.executable, str(ROOT / "tools" / "draw_overview.py"), str(drawn)]
    subprocess.run(command, check=True, timeout=300)
    committed = (ROOT / "docs" / "overview.svg").read_text(encoding="utf-8")
    assert committed == drawn.read_text(encoding="utf-8"), "run `python tools/draw_overview.py`"


def test_files_that_it_names_are_there():
    named = re.findall(r"`((?:\w+/)+[\w.]*)`", README.read_text(encoding="utf-8"))
    assert len(named) > 8
    roots = (ROOT, ROOT / "bindings" / "python" / "narrowcast")
    assert [name for name in named if not any((root / name).exists() for root in roots)] == []
