"""State dicts that do not fit an optimizer: an error before anything changes; but parameters that
were frozen, or are, may be missing.
"""

import copy

import pytest
import torch
from torch import nn

import narrowcast as nc
from models import same


def without_master(state):
    del state["state"][0]["master"]


def other_shape(state):
    state["state"][0]["exp_avg"] = torch.ones(3)


def no_state(state):
    state["state"]["another"] = state["state"].pop(0)


def more_groups(state):
    state["param_groups"].append({"params": []})


def fewer_parameters(state):
    state["param_groups"][0]["params"].pop()


def negative_step(state):
    state["state"][0]["step"] = torch.tensor(-1.0)


def half_a_step(state):
    state["state"][0]["step"] = 1.5


def many_steps(state):
    state["state"][0]["step"] = torch.ones(2)


def moment_on_meta(state):
    state["state"][0]["exp_avg"] = state["state"][0]["exp_avg"].to("meta")


def rate_of_nan(state):
    state["param_groups"][0]["lr"] = float("nan")


def unknown_rounding(state):
    state["param_groups"][0]["rounding"] = "up"


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (negative_step, "one.weight: step is -1.0 in the state dict; steps are counted from 0"),
        (half_a_step, "one.weight: step is 1.5 in the state dict"),
        (
            many_steps,
            r"one.weight: step has shape \(2,\) on cpu in the state dict; it is one number",
        ),
        (moment_on_meta, "one.weight: exp_avg is on the meta device in the state dict"),
        (rate_of_nan, "group 0: lr nan"),
        (unknown_rounding, "group 0: rounding is"),
        (without_master, "one.weight: the state dict has no 'master'"),
        (other_shape, r"one.weight: exp_avg has shape \(3,\) in the state dict, \(64, 64\)"),
        (no_state, "no state for one.weight"),
        (more_groups, r"groups of \[1, 0\] parameters, the optimizer of \[1\]"),
        (fewer_parameters, r"groups of \[0\] parameters"),
    ],
)
def test_state_dicts_that_do_not_fit(format, spoil, words):
    layer = nc.convert(nn.Linear(64, 64, bias=False), format)
    optimizer = nc.FusedAdam([("one.weight", layer.weight)])
    optimizer.make_state()
    saved = copy.deepcopy(optimizer.state_dict())
    saved["state"][0]["exp_avg_sq"].fill_(7.0)
    saved["param_groups"][0]["weight_decay"] = 7.0
    spoil(saved)
    with pytest.raises(ValueError, match=words):
        optimizer.load_state_dict(saved)
    assert optimizer.state[layer.weight]["exp_avg_sq"].count_nonzero() == 0
    assert optimizer.param_groups[0]["weight_decay"] != 7.0


def test_moments_of_another_dtype(format):
    models = [nc.convert(nn.Linear(64, 64, bias=False), format) for _ in range(2)]
    wide = nc.FusedAdam(models[0].parameters())
    narrow = nc.FusedAdam(models[1].parameters(), state_dtype=torch.bfloat16)
    wide.make_state()
    narrow.make_state()
    with pytest.raises(ValueError, match=r"exp_avg is torch\.float32.*state_dtype=torch\.float32"):
        narrow.load_state_dict(wide.state_dict())
    wide.load_state_dict(narrow.state_dict())


def test_parameters_that_were_frozen_begin_anew(format):
    """Of a checkpoint from before they were trained, in a new optimizer."""
    torch.manual_seed(0)
    model = nc.convert(nn.Sequential(nn.Linear(96, 96), nn.Linear(96, 96)), format)
    model[0].requires_grad_(False)
    saved = stepped(model).state_dict()
    model[0].requires_grad_(True)
    optimizer = nc.FusedAdam(model.parameters())
    optimizer.load_state_dict(saved)
    master = model[0].weight.master.clone()
    assert not optimizer.state[model[0].weight]
    model(torch.ones(2, 96)).sum().backward()
    optimizer.step()
    steps = [int(optimizer.state[layer.weight]["step"]) for layer in model]
    assert steps == [1, 2]
    assert not same(model[0].weight.master, master)


def stepped(model):
    optimizer = nc.FusedAdam(model.parameters())
    model(torch.ones(2, 96)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return optimizer


def test_parameters_in_another_order():
    """They have names: masters would go to each other's weights."""
    model = nc.convert(nn.Sequential(nn.Linear(96, 96), nn.Linear(96, 96)), "nvfp4")
    named = [*model.named_parameters()]
    saved = nc.FusedAdam(named)
    model(torch.ones(2, 96)).sum().backward()
    saved.step()
    other = nc.FusedAdam([named[2], named[1], named[0], named[3]])
    with pytest.raises(ValueError, match=r"number 0 is '0\.weight' there and '1\.weight' here"):
        other.load_state_dict(saved.state_dict())
    wrapped = nc.FusedAdam([(f"module.{name}", p) for name, p in named])
    wrapped.load_state_dict(saved.state_dict())


def test_frozen_parameters_may_be_missing(format):
    layer = nc.convert(nn.Linear(64, 64, bias=False), format)
    layer.weight.requires_grad_(False)
    optimizer = nc.FusedAdam(layer.parameters())
    optimizer.make_state()
    saved = optimizer.state_dict()
    optimizer.load_state_dict({**saved, "state": {}})
    optimizer.load_state_dict({**saved, "state": {"another": saved["state"][0]}})
    assert optimizer.state[layer.weight]["step"] == 0


def test_an_empty_entry_is_no_state(format):
    """Looking at `optimizer.state[p]` of a frozen parameter leaves one. torch's optimizers load it;
    a parameter that has state here and is trained needs some there.
    """
    model = nc.convert(nn.Sequential(nn.Linear(96, 96), nn.Linear(96, 96)), format)
    model[0].requires_grad_(False)
    optimizer = stepped(model)
    assert not optimizer.state[model[0].weight]
    saved = optimizer.state_dict()
    assert saved["state"][0] == {}
    optimizer.load_state_dict(saved)
    nc.FusedAdam(model.parameters()).load_state_dict(saved)
    saved["state"][2] = {}
    with pytest.raises(ValueError, match="no state for"):
        optimizer.load_state_dict(saved)
