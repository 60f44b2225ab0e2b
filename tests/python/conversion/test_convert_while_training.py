"""A model that is trained with plain shards, and converted then: masters and moments go on to the
bit. And states that FusedAdam has saved of parameters of another dtype.
"""

import copy

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

import narrowcast as nc
import ranks
from models import same
from narrowcast.tensor import dtensors

DTYPES = [torch.float32, torch.bfloat16]


def trained(dtype, mesh=None, steps=3):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 96), nn.LayerNorm(96)).to(dtype)
    if mesh is not None:
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


def go_on(mesh, name, dtype):
    model, optimizer = trained(dtype, mesh)
    before = masters(model, optimizer)
    nc.convert(model, name)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    step(model, optimizer)  # with what it has
    after = masters(model, optimizer)
    assert all(same(one, other) for one, other in zip(before, after, strict=True))
    weight = model[0].weight.to_local()
    assert same(weight.master, after[0])
    assert dtensors.local_of(optimizer.state[model[0].weight]["master"]) is weight.master or same(
        dtensors.local_of(optimizer.state[model[0].weight]["master"]), weight.master
    )
    # A user's write between conversion and step is the new value.
    model, optimizer = trained(dtype, mesh)
    nc.convert(model, name)
    with torch.no_grad():
        model[0].weight.fill_(0.25)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    step(model, optimizer)
    assert bool((masters(model, optimizer)[0] == 0.25).all())


@pytest.mark.parametrize("dtype", DTYPES)
def test_shards_are_converted_while_training(format, device, dtype):
    ranks.run(2, device, go_on, format, dtype)


def test_a_state_of_narrower_parameters():
    """Masters of bfloat16 parameters are the values of float32 ones."""
    narrow, of_narrow = trained(torch.bfloat16)
    wide, of_wide = trained(torch.float32, steps=0)
    saved = copy.deepcopy(of_narrow.state_dict())
    wide.load_state_dict(narrow.state_dict())
    of_wide.load_state_dict(saved)
    for one, other in zip(masters(narrow, of_narrow), wide.parameters(), strict=True):
        assert same(one, other.detach())
    saved["state"][0]["master"] = torch.zeros(3)
    with pytest.raises(ValueError, match=r"master has shape \(3,\) in the state dict"):
        of_wide.load_state_dict(saved)


def test_a_state_of_wider_parameters():
    _, of_wide = trained(torch.float32)
    for model in (trained(torch.bfloat16, steps=0)[0], nc.convert(nn.Linear(96, 64), "mxfp4")):
        optimizer = nc.FusedAdam([*model.parameters()][:1])
        saved = copy.deepcopy(of_wide.state_dict())
        saved["param_groups"][0]["params"] = [0]
        with pytest.raises(ValueError, match=r"no 'master'.*load such a checkpoint into a model"):
            optimizer.load_state_dict(saved)
