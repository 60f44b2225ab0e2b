"""Tensors of the optimizer's state that a user replaces between steps: kernels go on with the new
ones, and what cannot be gone on with is refused before anything changes.
"""

import copy

import pytest
import torch

import narrowcast as nc
import ranks
from models import GATHERS, assert_equal, build_plain, loss_of, same, shard
from models import build as build_model
from narrowcast.tensor import dtensors
from weights import value_of

KINDS = [GATHERS[0], "plain", "bfloat16"]  # a converted weight, and those that are not
TESTED_FORMATS = KINDS
ENTRIES = ["exp_avg", "exp_avg_sq", "step"]
NAME = "blocks.0.up.weight"


def build(format, device, mesh=None):
    """A model, its optimizer, and the parameter whose state is replaced, with its name."""
    if format in GATHERS:
        model = build_model(format, device)
    else:
        dtype = torch.bfloat16 if format == "bfloat16" else torch.float32
        model = build_plain("mxfp4", device, dtype)
    if mesh is not None:
        shard(model, mesh)
    optimizer = nc.FusedAdam(model.named_parameters(), lr=1e-2)
    return model, optimizer, dict(model.named_parameters())[NAME]


def backward(model, device, step=0):
    loss_of(model, step, device, model.norm.weight.dtype).backward()


def train(model, optimizer, steps, device, first=0):
    for step in range(first, first + steps):
        backward(model, device, step)
        optimizer.step()
        optimizer.zero_grad()


def other_value(entry, tensor):
    """Another value of an entry, in memory of its own."""
    if entry == "step":
        return tensor + 7
    noise = torch.Generator().manual_seed(3)
    return torch.rand(tensor.shape, generator=noise).to(tensor.device)


def snapshot(model, optimizer):
    """All that a step changes."""
    values = (value_of(p).clone() for p in model.parameters())
    return [copy.deepcopy(optimizer.state_dict()), *values]


def assert_unchanged(before, after):
    (state, *values), (state2, *values2) = before, after
    for key, entries in state["state"].items():
        for entry, tensor in entries.items():
            other = state2["state"][key][entry]
            assert same(*map(dtensors.local_of, (tensor, other))), (key, entry)
    assert all(map(same, values, values2))


def replace(mesh, format, entry, steps, device):
    """Replaced before a step in one model, copied into in the other: both go on alike."""
    models = [build(format, device, mesh) for _ in range(2)]
    for (model, optimizer, parameter), is_new in zip(models, (True, False), strict=True):
        train(model, optimizer, steps, device)
        state = optimizer.state[parameter]
        backward(model, device, steps)
        value = other_value(entry, dtensors.local_of(state[entry]))
        given = value if entry == "step" else dtensors.like(parameter, value)
        if is_new:
            state[entry] = given
        else:
            dtensors.local_of(state[entry]).copy_(value)
        optimizer.step()
        optimizer.zero_grad()
        train(model, optimizer, 2, device, steps + 1)
        if is_new:
            assert state[entry] is given
    assert_equal(*(one[:2] for one in models))


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("entry", ENTRIES)
def test_replaced(format, device, entry, steps):
    replace(None, format, entry, steps, device)


@pytest.mark.parametrize("entry", ENTRIES)
@ranks.on(2)
def test_replaced_in_shards(mesh, format, entry, steps=1):
    replace(mesh, format, entry, steps, mesh.device_type)


def shortened(tensor):
    """The same address, fewer elements."""
    return tensor.view(-1)[:-1]


WRONG = {
    "fewer": shortened,
    "not contiguous": lambda t: t.t().contiguous().t(),
    "integers": lambda t: t.to(torch.int32),
    "meta": lambda t: t.to("meta"),
    "no tensor": lambda t: 3.0,
}
OF_NUMBERS = ("fewer", "not contiguous")  # makes no sense for step


def refusal(model, optimizer, parameter, entry):
    """What is wrong with how a step refuses the present state; None if nothing is."""
    state = optimizer.state[parameter]
    given = state.pop(entry, None)
    before = snapshot(model, optimizer)
    if given is not None:
        state[entry] = given
    try:
        optimizer.step()
        return "it is taken"
    except Exception as error:
        expected = isinstance(error, (ValueError, TypeError))
        if not expected or NAME not in str(error) or entry not in str(error):
            return f"{type(error).__name__}: {error}"
    state.pop(entry, None)
    try:
        assert_unchanged(before, snapshot(model, optimizer))
    except AssertionError as error:
        return f"changed: {error}"


@pytest.mark.parametrize("entry", ENTRIES)
def test_what_does_not_fit(format, device, entry):
    found = {}
    for name, make in WRONG.items():
        model, optimizer, parameter = build(format, device)
        train(model, optimizer, 1, device)
        state = optimizer.state[parameter]
        if entry == "step" and name in OF_NUMBERS:
            continue
        backward(model, device)
        state[entry] = make(state[entry])
        found[name] = refusal(model, optimizer, parameter, entry)
    found = {name: what for name, what in found.items() if what}
    assert not found, found


@pytest.mark.parametrize("entry", ENTRIES)
def test_what_is_missing(format, device, entry):
    model, optimizer, parameter = build(format, device)
    train(model, optimizer, 1, device)
    backward(model, device)
    del optimizer.state[parameter][entry]
    found = refusal(model, optimizer, parameter, entry)
    assert found is None, found


@pytest.mark.parametrize("entry", ["exp_avg", "exp_avg_sq"])
def test_the_same_tensor_with_another_size(format, device, entry):
    """At the address of before."""
    model, optimizer, parameter = build(format, device)
    train(model, optimizer, 1, device)
    backward(model, device)
    tensor = optimizer.state[parameter][entry]
    tensor.data = shortened(tensor)
    found = refusal(model, optimizer, parameter, entry)
    assert found is None, found
