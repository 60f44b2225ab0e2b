"""Groups and state that a user changes by hand: parameters put in and taken out, state cleared,
deleted or put in whole. A step goes on with what is there, as torch's optimizers do.
"""

import copy

import pytest
import torch

import narrowcast as nc
from models import GATHERS, assert_same, build_plain, loss_of
from models import build as build_model
from weights import value_of

TESTED_FORMATS = [*GATHERS, "plain"]


def build(format, device):
    model = build_model(format, device) if format in GATHERS else build_plain("mxfp4", device)
    return model, nc.FusedAdam(model.named_parameters(), lr=1e-2)


def train(model, optimizer, device, steps=1, first=0):
    for step in range(first, first + steps):
        loss_of(model, step, device, model.norm.weight.dtype).backward()
        optimizer.step()
        optimizer.zero_grad()


def value(parameter):
    return value_of(parameter).clone()


def test_a_parameter_that_is_taken_out(format, device):
    model, optimizer = build(format, device)
    train(model, optimizer, device)
    weight = model.blocks[0].up.weight
    group = optimizer.param_groups[0]
    position = [parameter is weight for parameter in group["params"]].index(True)
    del group["params"][position], group["param_names"][position]
    before, others = value(weight), [value(p) for p in group["params"]]
    step = optimizer.state[weight]["step"].clone()
    train(model, optimizer, device, first=1)
    assert torch.equal(value(weight), before) and optimizer.state[weight]["step"] == step
    assert not any(map(torch.equal, map(value, group["params"]), others))


def test_a_parameter_that_is_put_in(format, device):
    """It begins with state of its own, like one that was there from the start."""
    weights = []
    for whole in (True, False):
        model, optimizer = build(format, device)
        if not whole:
            others = [(n, p) for n, p in model.named_parameters() if n != "blocks.0.up.weight"]
            optimizer = nc.FusedAdam(others, lr=1e-2)
            for _ in range(2):  # tables are made, without a gradient
                optimizer.step()
            optimizer.param_groups[0]["params"].append(model.blocks[0].up.weight)
            optimizer.param_groups[0]["param_names"].append("blocks.0.up.weight")
        train(model, optimizer, device, steps=2)
        weights.append(model.blocks[0].up.weight)
        assert optimizer.state[weights[-1]]["step"] == 2
    if format in GATHERS:
        assert_same(*(weight.detach() for weight in weights))
    else:
        assert torch.equal(*weights)


@pytest.mark.parametrize("how", ["clear", "del", "another dict"])
def test_state_that_is_gone(format, device, how):
    """Adam begins anew: the update is that of a first step, from the present value."""
    models = [build(format, device) for _ in range(2)]
    for model, optimizer in models:
        train(model, optimizer, device)
    (model, optimizer), (other, expected) = models
    weight, twin = model.blocks[0].up.weight, other.blocks[0].up.weight
    if how == "clear":
        optimizer.state[weight].clear()
    elif how == "del":
        del optimizer.state[weight]
    else:
        optimizer.state[weight] = {}
    for entry in ("step", "exp_avg", "exp_avg_sq"):
        expected.state[twin][entry].zero_()
    train(model, optimizer, device, first=1)
    train(other, expected, device, first=1)
    assert optimizer.state[weight].keys() == expected.state[twin].keys()
    assert optimizer.state[weight]["step"] == 1
    assert torch.equal(value(weight), value(twin))
    assert torch.equal(optimizer.state[weight]["exp_avg"], expected.state[twin]["exp_avg"])


def test_another_dict(format, device):
    """What is put into the place of a parameter's state is what the next step goes on with."""
    models = [build(format, device) for _ in range(2)]
    for model, optimizer in models:
        train(model, optimizer, device)
    (model, optimizer), (other, expected) = models
    weight, twin = model.blocks[0].up.weight, other.blocks[0].up.weight
    given = {key: tensor.clone() for key, tensor in optimizer.state[weight].items()}
    given["exp_avg"] += 0.5
    optimizer.state[weight] = given
    expected.state[twin]["exp_avg"] += 0.5
    train(model, optimizer, device, first=1)
    train(other, expected, device, first=1)
    assert optimizer.state[weight] is given
    assert torch.equal(given["exp_avg"], expected.state[twin]["exp_avg"])
    assert torch.equal(value(weight), value(twin))


def test_default_device(format, device):
    """Steps are counted on the CPU, whatever the default device."""
    torch.set_default_device("meta")
    try:
        with torch.device(device):
            model = build(format, device)[0]
        optimizer = nc.FusedAdam(model.parameters(), lr=1e-2)
        with torch.device(device):
            train(model, optimizer, device)
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    finally:
        torch.set_default_device(None)
    assert all(state["step"].device.type == "cpu" for state in optimizer.state.values())
