"""A model that is trained with plain shards, and converted then: masters and moments go on to the
bit.
"""

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

import narrowcast as nc
import ranks
from models import same
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


def masters(model, optimizer):
    every = (optimizer.state[one].get("master", one) for one in model.parameters())
    return [dtensors.local_of(one.detach()).float().clone() for one in every]


def go_on(mesh, name):
    model, optimizer = trained(mesh)
    before = masters(model, optimizer)
    nc.convert(model, name)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    step(model, optimizer)  # with what it has
    after = masters(model, optimizer)
    assert all(same(one, other) for one, other in zip(before, after, strict=True))
    weight = model[0].weight.to_local()
    assert same(weight.master, after[0])
    assert same(dtensors.local_of(optimizer.state[model[0].weight]["master"]), weight.master)
    # A user's write between conversion and step is the new value.
    model, optimizer = trained(mesh)
    nc.convert(model, name)
    with torch.no_grad():
        model[0].weight.fill_(0.25)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    step(model, optimizer)
    assert bool((masters(model, optimizer)[0] == 0.25).all())


def test_shards_are_converted_while_training(format, device):
    ranks.run(2, device, go_on, format)
