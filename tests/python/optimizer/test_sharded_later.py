"""An optimizer that was made before fully_shard: its step names what it would not train."""

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

import narrowcast as nc
import ranks
from models import one_of_each


def shard_after(mesh, format):
    model = nc.convert(nn.Sequential(nn.Linear(64, 256, bias=False)), format)
    optimizer = nc.FusedAdam(model.parameters(), lr=1e-2)
    fully_shard(model, mesh=mesh)
    model(torch.ones(2, 64)).sum().backward()
    optimizer.step()


@pytest.mark.parametrize("name", one_of_each(lambda f: f.tensor_amax))
@pytest.mark.parametrize("world", [1, 2])
def test_fully_shard_after_the_optimizer(name, world):
    for kind, message in ranks.errors(world, "cpu", shard_after, name):
        assert kind == "RuntimeError"
        assert "0.weight: fully_shard has replaced this weight" in message
        assert "after fully_shard" in message
