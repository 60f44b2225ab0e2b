"""Training under FSDP2 in a FakeTensorMode, with which memory is estimated before a run."""

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard

import narrowcast as nc
import ranks
from models import SHARDINGS, unit

TESTED_FORMATS = SHARDINGS
OPTIONS = {"rows": {}, "columns": {"shard_placement_fn": lambda _: Shard(1)}}


def estimate(mesh, format, cut, matmul):
    width = 2 * unit(format) if cut != "rows within blocks" else 80
    with FakeTensorMode():
        model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(2)))
        nc.convert(model, format, matmul=matmul)
        for module in (*model, model):
            fully_shard(module, mesh=mesh, **OPTIONS.get(cut, {}))
        optimizer = nc.FusedAdam(model.parameters())
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(8, width)).sum().backward()
            optimizer.step()
    weight = model[0].weight
    moments = optimizer.state[weight]["exp_avg"].shape, weight.grad.shape
    assert moments == (weight.shape, weight.shape)


@pytest.mark.parametrize("cut", ["rows", "rows within blocks", "columns"])
def test_a_step(format, cut):
    if cut == "rows within blocks" and nc.format(format).is_delayed:
        pytest.skip("cannot be cut so")
    ranks.run(2, "cpu", estimate, format, cut, "dequantized")


SCALED = [name for name in nc.formats() if nc.format(name).matmul is not None]


@pytest.mark.parametrize("name", SCALED)
def test_scaled_products(name):
    ranks.run(2, "cpu", estimate, name, "rows", "scaled")
