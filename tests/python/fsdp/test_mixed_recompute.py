"""Weights of one group and format of which some are gathered for both passes at once, as
nc.convert(recompute=True) has it, and some for each: both passes read what they would read alone.
"""

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

import narrowcast as nc
import ranks

TESTED_FORMATS = [name for name in nc.formats() if nc.format(name).gather == "by pass"]


def model_of(format, recomputed, device):
    torch.manual_seed(0)
    width = 256
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in recomputed))
    for layer, recompute in zip(model, recomputed, strict=True):
        nc.convert(layer, format, recompute=recompute)
    return model.to(device)


def passes(mesh, format, recomputed):
    whole, model = (model_of(format, recomputed, mesh.device_type) for _ in range(2))
    fully_shard(model, mesh=mesh, reshard_after_forward=True)
    inputs = [torch.ones(3, 256, device=mesh.device_type, requires_grad=True) for _ in range(2)]
    for _ in range(3):  # the first gathers make room
        found = []
        for one, x in zip((whole, model), inputs, strict=True):
            y, x.grad = one(x), None
            y.sum().backward()
            found.append((y, x.grad))
        (y, grad), (of_shards, grad_of_shards) = found
        assert torch.equal(y, of_shards) and torch.equal(grad, grad_of_shards)


@pytest.mark.parametrize("recomputed", [(True, False), (False, True), (False, True, False)])
def test_mixed(format, recomputed, device):
    ranks.run(2, device, passes, format, recomputed)
