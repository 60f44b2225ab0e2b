"""Values that memory does not hold as they are: lazily negated tensors. Kernels read memory, so
they are made real first.
"""

import pytest
import torch
from torch import nn

import narrowcast as nc
from models import assert_same

TESTED_FORMATS = ["mxfp8_e4m3", "nvfp4", "fp8_e4m3"]


def noise(device):
    return torch.randn(64, 64, generator=torch.Generator().manual_seed(1)).to(device)


def lazy_value(kind, device):
    """A tensor, and the same as memory holds it."""
    if kind == "negated":
        return torch._neg_view(noise(device)), -noise(device)
    pair = torch.complex(torch.zeros(64, 64, device=device), noise(device))
    return pair.conj().imag, -noise(device)


KINDS = pytest.mark.parametrize("kind", ["negated", "negated and strided"])


@KINDS
def test_quantize(format, device, kind):
    value, expected = lazy_value(kind, device)
    assert_same(nc.quantize(value, format), nc.quantize(expected, format))


def test_zeros_without_memory(format, device):
    """Those that forward-mode derivatives begin with."""
    with pytest.raises(ValueError, match="zeros that torch has put off"):
        nc.quantize(torch._efficientzerotensor((64, 64), device=device), format)


@KINDS
def test_gradients(format, device, kind):
    pair = lazy_value(kind, device)
    weights = []
    for gradient in pair:
        layer = nn.Linear(64, 64, bias=False, device=device)
        with torch.no_grad():
            layer.weight.copy_(noise(device))
        nc.convert(layer, format)
        optimizer = nc.FusedAdam(layer.parameters(), lr=1e-2)
        layer.weight.grad = gradient
        optimizer.step()
        assert optimizer.state[layer.weight]["step"] == 1
        weights.append(layer.weight.detach())
    assert_same(*weights)
