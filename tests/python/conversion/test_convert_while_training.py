"""A model that is trained with plain shards, and converted then: values and moments go on to the
bit.
"""

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

import narrowcast as nc
import ranks
from models import local_values, same
from narrowcast.tensor import dtensors


def trained(mesh, steps=3):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 96), nn.LayerNorm(96))
    fully_shard(model.to(mesh.device_type), mesh=mesh)
    optimizer = nc.FusedAdam(model.parameters(), lr=0.01)
    for _ in range(steps):
        step(model, optimizer)
    return model, optimizer


def step(model, optimizer):
    for number, parameter in enumerate(model.parameters()):
        local = dtensors.local_of(parameter.detach())
        gradient = torch.full(local.shape, 0.3 + number, dtype=parameter.dtype, device=local.device)
        parameter.grad = dtensors.like(parameter, gradient)
    optimizer.step()
    optimizer.zero_grad()


@ranks.on(2)
def test_shards_are_converted_while_training(mesh, format):
    model, optimizer = trained(mesh)
    before = local_values(model)
    nc.convert(model, format)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    step(model, optimizer)  # with what it has
    after = local_values(model)
    assert all(same(one, other) for one, other in zip(before, after, strict=True))
    assert isinstance(model[0].weight.to_local(), nc.MasterWeight)
    # A user's write between conversion and step is the new value.
    model, optimizer = trained(mesh)
    nc.convert(model, format)
    with torch.no_grad():
        model[0].weight.fill_(0.25)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    step(model, optimizer)
    assert bool((local_values(model)[0] == 0.25).all())
