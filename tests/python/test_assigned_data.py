"""Assignments to `.data` of a QuantizedTensor: of one like it, or refused."""

import copy

import pytest
import torch
from torch import nn

import narrowcast as nc
from models import GATHERS, assert_same, same


def test_assigning_data(format):
    """As libraries change dtypes: bytes, master and logical dtype are those of what is assigned.
    Optimizers go on, with state and without.
    """
    layer = nc.convert(nn.Linear(64, 64, bias=False, dtype=torch.bfloat16), format)
    weight, value = layer.weight, layer.weight.data.to(torch.float32)
    twin = copy.deepcopy(layer).to(torch.float32)
    weight.data = value
    assert layer.weight is weight
    assert weight.requires_grad
    assert weight.dtype == torch.float32
    assert weight._store is value._store
    optimizers = [nc.FusedAdam(one.parameters(), lr=0.1) for one in (layer, twin)]
    for step in range(3):
        for one, optimizer in zip((layer, twin), optimizers, strict=True):
            one(torch.full((2, 64), float(step))).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert same(weight.master, twin.weight.master)
        assert_same(weight.detach(), twin.weight.detach())
        weight.data = weight.data.clone()


@pytest.mark.parametrize(
    "value",
    [
        lambda format: torch.ones(64, 64),
        lambda format: nc.quantize(torch.ones(128, 64), format),
        lambda format: nc.quantize(torch.ones(128, 64), format)[:64],
        lambda format: nc.quantize(torch.ones(64, 64), next(n for n in GATHERS if n != format)),
    ],
)
def test_assigning_other_data_is_refused(value, format):
    """It would change nothing, in silence: torch swaps what a wrapper does not have."""
    if 64 % nc.format(format).row_step:
        pytest.skip("cannot be cut there")
    q = nc.quantize(torch.randn(64, 64), format)
    before = q.dequantize()
    with pytest.raises(NotImplementedError, match=r"\.data .*copy_"):
        q.data = value(format)
    assert torch.equal(q.dequantize(), before)
