"""A checkpoint of torch's AdamW is loaded by parts: what it has not is left as it was made."""

import copy

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

import narrowcast as nc
from models import one_of_each

KINDS = [None, *one_of_each(lambda f: (f.is_delayed, f.columnwise_derived))]
PLANNER = {"planner": dcp.DefaultLoadPlanner(allow_partial_load=True)}


def model_for(seed, dtype, format=None):
    torch.manual_seed(seed)
    model = nn.Linear(64, 64, dtype=dtype)
    return model if format is None else nc.convert(model, format)


def step(model, optimizer):
    model(torch.ones(4, 64, dtype=model.bias.dtype)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("copies", [False, True], ids=["alias", "copied"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.filterwarnings("ignore:.*single process:UserWarning")
def test_its_values_come(kind, dtype, copies, tmp_path):
    """Also where the state dicts are not the memory that is trained, as with cpu_offload=True of a
    GPU's, and the model is set before the optimizer.
    """
    saved = model_for(0, dtype)
    adamw = torch.optim.AdamW(saved.parameters(), lr=0.5)
    step(saved, adamw)
    parts = dict(zip(("model", "optimizer"), get_state_dict(saved, adamw), strict=True))
    dcp.save(parts, checkpoint_id=tmp_path)

    model = model_for(1, dtype, kind)
    optimizer = nc.FusedAdam(model.parameters(), lr=0.1, rounding="stochastic")
    parts = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    if copies:
        parts = copy.deepcopy(parts)
    dcp.load(parts, checkpoint_id=tmp_path, **PLANNER)
    set_model_state_dict(model, parts["model"])
    set_optimizer_state_dict(model, optimizer, parts["optimizer"])
    master = model.weight if kind is None else model.weight.master
    assert torch.equal(master.detach().float(), saved.weight.detach().float())
    assert torch.equal(model.bias, saved.bias)
    for mine, theirs in zip(model.parameters(), saved.parameters(), strict=True):
        exp_avg, expected = optimizer.state[mine]["exp_avg"], adamw.state[theirs]["exp_avg"]
        assert torch.equal(exp_avg, expected.to(exp_avg.dtype))
    (group,) = optimizer.param_groups
    assert (group["lr"], group["rounding"]) == (0.5, "stochastic")
    step(model, optimizer)
    assert optimizer.state[model.weight]["step"] == 2


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_a_state_that_was_asked_for_is_loaded(rounding):
    """One that is saved before the first step leaves the rounding as it is."""
    model = model_for(0, torch.float32, "mxfp8_e4m3")
    _, state = get_state_dict(model, nc.FusedAdam(model.parameters()))
    other = model_for(0, torch.float32, "mxfp8_e4m3")
    optimizer = nc.FusedAdam(other.parameters(), rounding=rounding)
    set_optimizer_state_dict(other, optimizer, state)
    assert optimizer.param_groups[0]["rounding"] == rounding
    step(other, optimizer)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", KINDS[1:], ids=str)
def test_there_and_back(kind, dtype):
    """AdamW goes on from a state of FusedAdam's, and keeps the masters that it had: they are no
    longer the weights'.
    """
    ours = model_for(0, dtype, kind)
    optimizer = nc.FusedAdam(ours.parameters(), lr=0.1)
    step(ours, optimizer)
    plain = model_for(1, dtype)
    plain.load_state_dict(ours.state_dict())
    adamw = torch.optim.AdamW(plain.parameters(), lr=0.1)
    adamw.load_state_dict(optimizer.state_dict())
    step(plain, adamw)
    back = model_for(2, dtype, kind)
    optimizer = nc.FusedAdam(back.parameters(), lr=0.1)
    back.load_state_dict(plain.state_dict())
    optimizer.load_state_dict(copy.deepcopy(adamw.state_dict()))
    assert torch.equal(back.weight.master, plain.weight.detach().float())
    assert torch.equal(back.bias, plain.bias)
    state, expected = optimizer.state[back.weight], adamw.state[plain.weight]
    assert int(state["step"]) == 2
    assert torch.equal(state["exp_avg"], expected["exp_avg"].float())
