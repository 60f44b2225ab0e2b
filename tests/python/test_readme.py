"""The README's example runs as it stands, and for a format of each way of gathering."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from models import one_of_each

README = Path(__file__).parents[2] / "README.md"
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
quantized = [p for p in model.parameters() if isinstance(p.to_local(), nc.QuantizedTensor)]
assert len(quantized) == 3
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
