"""DTensor.full_tensor() of shards: a plain tensor of masters, on any number of ranks."""

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

import narrowcast as nc
import ranks
from models import same


def full(mesh, name, trainable):
    torch.manual_seed(0)
    layer = nc.convert(nn.Linear(64, 128, bias=False), name, trainable=trainable)
    value = layer.weight.master if trainable else layer.weight.dequantize()
    value = value.detach().clone()
    fully_shard(layer, mesh=mesh)
    whole = layer.weight.full_tensor()
    assert type(whole) is torch.Tensor
    assert same(whole.detach(), value)
    if trainable:
        (2 * whole).sum().backward()
        assert same(layer.weight.grad.full_tensor(), torch.full((128, 64), 2.0))
        with torch.no_grad():
            whole.zero_()  # memory of its own
        assert same(layer.weight.full_tensor().detach(), value)


@pytest.mark.parametrize("trainable", [True, False])
@pytest.mark.parametrize("count", [1, 2])
def test_plain_tensors(format, count, trainable):
    ranks.run(count, "cpu", full, format, trainable)
