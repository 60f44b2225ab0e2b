"""What is written to weight.master by hand, the bytes follow: averages, clamps, loads."""

import copy

import pytest
import torch
from torch import nn

import narrowcast as nc
from models import assert_quantized, assert_same, same


def written(weight, where):
    """The tensor that somebody writes to."""
    if where == "master":
        return weight.master
    if where == "part":
        return weight.master[3:7]
    return weight.detach().master.view(-1)


@pytest.mark.parametrize("where", ["master", "part", "view"])
def test_writes_by_hand(format, device, where):
    layer = nc.convert(nn.Linear(96, 64, bias=False), format).to(device)
    x = torch.randn(4, 96, device=device)
    before = layer(x)
    with torch.no_grad():
        written(layer.weight, where).mul_(3)
    assert not same(layer(x), before)
    assert_quantized(layer.weight.detach().cpu(), layer.weight.master.cpu(), where)


@pytest.mark.parametrize("where", ["master", "part", "view", "state dict"])
def test_writes_between_forward_and_backward(format, device, where):
    """Whoever writes there has the backward refuse the weight, as torch does for plain ones."""
    layer = nc.convert(nn.Linear(96, 64, bias=False), format).to(device)
    x = torch.randn(4, 96, device=device, requires_grad=True)
    y = layer(x).sum()
    held = layer.state_dict()["weight"] if where == "state dict" else written(layer.weight, where)
    with torch.no_grad():
        held.mul_(3)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()
    fresh = nc.convert(plain_of({"weight": layer.weight.master}), format).to(device)
    gradients = [torch.autograd.grad(one(x).sum(), x)[0] for one in (layer, fresh)]
    assert same(*gradients)


@pytest.mark.parametrize("where", ["master", "state dict"])
def test_saved_after_a_write(format, where):
    """Nobody has read the weight in between."""
    model, other = (nc.convert(nn.Linear(96, 64, bias=False), format) for _ in range(2))
    optimizer, theirs = (nc.FusedAdam(one.parameters(), lr=0.01) for one in (model, other))
    for _ in range(2):
        model(torch.randn(4, 96)).sum().backward()
        optimizer.step()
    with torch.no_grad():
        held = model.weight.master if where == "master" else model.state_dict()["weight"]
        held.clamp_(-0.02, 0.02)
    states = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    other.load_state_dict(states[0])
    theirs.load_state_dict(states[1])
    assert_same(other.weight, model.weight)


@pytest.mark.old_way("bytes are copied")
def test_copied_over_a_write(format):
    """What is copied is there byte for byte, though the weight waited for a cast."""
    layer = nc.convert(nn.Linear(96, 64, bias=False), format)
    optimizer = nc.FusedAdam(layer.parameters(), lr=0.01, rounding="stochastic")
    layer(torch.randn(4, 96)).sum().backward()
    optimizer.step()
    weight = layer.weight.detach()
    kept, bytes = weight.clone(), weight.rowwise_data.clone()
    weight.master.mul_(3)
    weight.copy_(kept)
    assert same(weight.rowwise_data, bytes)
    assert_same(weight, kept)


def test_state_dicts_from_before(format):
    """Of the plain model, whose memory the master goes on with."""
    layer = nn.Linear(96, 64, bias=False)
    state = layer.state_dict()
    nc.convert(layer, format)
    with torch.no_grad():
        state["weight"].mul_(3)
    x = torch.randn(4, 96)
    assert same(layer(x), nc.convert(plain_of(state), format)(x))


def plain_of(state):
    layer = nn.Linear(96, 64, bias=False)
    layer.load_state_dict(state)
    return layer
