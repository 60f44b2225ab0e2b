"""FlopCounterMode counts of a converted model what it counts of a plain one."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import narrowcast as nc

SCALED = ["mxfp8_e4m3", "nvfp4"]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(64, 128), nn.Linear(128, 64, bias=False)

    def forward(self, x):
        y = self.down(F.gelu(self.up(x)))
        return y + x @ self.up.weight.t() @ self.down.weight.t()


def flops_of(model, x):
    with FlopCounterMode(display=False) as counter:
        model(x).sum().backward()
    return counter.get_total_flops()


def counted(format, device, compiled=False, **options):
    """Of a plain model, and of a converted one."""
    torch.manual_seed(0)
    models = Model().to(device), nc.convert(Model().to(device), format, **options)
    x = torch.randn(4, 32, 64, device=device, requires_grad=True)
    if compiled:
        models = [torch.compile(model, backend="aot_eager") for model in models]
    return [flops_of(model, x) for model in models]


@pytest.mark.parametrize("compiled", [False, True])
def test_decoded(format, device, compiled):
    plain, quantized = counted(format, device, compiled)
    assert quantized == plain > 0


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", SCALED)
def test_scaled(name, device, compiled):
    plain, quantized = counted(name, device, compiled, matmul="scaled")
    assert quantized == plain > 0


def test_on_meta():
    plain, quantized = counted("mxfp8_e4m3", "meta")
    assert quantized == plain > 0
