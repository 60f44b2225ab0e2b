"""The README's example runs as it stands, and for a format of each way of gathering; its picture
shows the formats' facts; the files that it names are there.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from models import one_of_each

ROOT = Path(__file__).parents[3]
README = ROOT / "README.md"
MODEL = """
import torch
from torch import nn

torch.manual_seed(0)


class MyModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(64, 64) for _ in range(2))
        self.head = nn.Linear(64, 32)

    def forward(self, x):
        for block in self.blocks:
            x = torch.relu(block(x))
        return self.head(x)


batches = [(torch.randn(8, 64), torch.randint(32, (8,))) for _ in range(3)]
"""
AFTER = """
converted = [p for p in model.parameters() if isinstance(p.to_local(), nc.MasterWeight)]
assert len(converted) == 3
assert all(optimizer.state[p]["step"] == 3 for p in model.parameters())
dist.destroy_process_group()
"""


def example():
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 1
    assert 'nc.convert(MyModel(), "mxfp8_e4m3")' in blocks[0]
    return blocks[0]


@pytest.mark.parametrize("name", one_of_each(lambda f: f.gather))
def test_example(name, tmp_path):
    program = tmp_path / "example.py"
    program.write_text(MODEL + example().replace("mxfp8_e4m3", name) + AFTER)
    rendezvous = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    environment = {**os.environ, **rendezvous, "CUDA_VISIBLE_DEVICES": ""}
    result = subprocess.run(
        [sys.executable, str(program)], env=environment, capture_output=True, text=True, timeout=300
    )
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
