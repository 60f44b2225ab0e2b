"""Hooks that torch allows of optimizers, and copies of a model with its optimizer."""

import copy

import pytest
import torch
from torch import nn

import narrowcast as nc
from internals import buffers_of
from models import one_of_each, pickled


def trained(dtype=torch.float32):
    torch.manual_seed(0)
    model = nc.convert(nn.Linear(64, 64, dtype=dtype), "mxfp8_e4m3")
    optimizer = nc.FusedAdam(model.parameters(), lr=1e-2)
    step(model, optimizer)
    return model, optimizer


def step(model, optimizer):
    model(torch.ones(2, 64, dtype=model.bias.dtype)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_a_hook_gives_the_closure():
    _, optimizer = trained()
    calls = []
    optimizer.register_step_pre_hook(
        lambda one, *_: ((one,), {"closure": lambda: calls.append(1) or 3.0})
    )
    assert optimizer.step() == 3.0
    assert calls == [1]


def test_hooks_of_state_dicts_see_what_is_saved():
    _, optimizer = trained()
    seen = []
    optimizer.register_state_dict_post_hook(lambda _, saved: seen.append(saved))
    optimizer.register_state_dict_post_hook(lambda _, saved: {"wrapped": saved})
    saved = optimizer.state_dict()
    assert saved == {"wrapped": seen[0]}
    assert seen[0]["param_groups"][0]["decoupled_weight_decay"]


def test_a_hook_that_keeps_little():
    _, optimizer = trained()

    def little(_, saved):
        groups = [{key: group[key] for key in ("params", "lr")} for group in saved["param_groups"]]
        return {**saved, "param_groups": groups}

    optimizer.register_state_dict_post_hook(little)
    assert optimizer.state_dict()["param_groups"] == [{"params": [0, 1], "lr": 1e-2}]


@pytest.mark.parametrize("copied", [copy.deepcopy, pickled])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_write_goes_along_with_a_copy(copied, dtype):
    model, optimizer = trained(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(3.0)
    other, others = copied((model, optimizer))
    for pair in ((model, optimizer), (other, others)):
        step(*pair)
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine.detach().float() + 0, theirs.detach().float() + 0)
        assert (mine.detach().float() + 0).min() > 2
    assert others.state_dict()["param_groups"] == optimizer.state_dict()["param_groups"]


@pytest.mark.parametrize("name", one_of_each(lambda f: (f.tensor_amax, f.is_delayed)))
def test_a_master_that_is_written_to_before_a_step(name):
    """The bytes are those of the step, with its rounding, though the write was seen by none."""
    torch.manual_seed(0)
    layer = nc.convert(nn.Linear(64, 64, bias=False), name)
    optimizer = nc.FusedAdam(layer.parameters(), lr=1e-2, rounding="stochastic")
    layer.weight.grad = torch.ones(64, 64)
    optimizer.step()
    layer.weight.value.mul_(0.5)
    optimizer.step()
    before = [one.clone() for one in buffers_of(layer.weight)]
    layer(torch.ones(1, 64))
    after = buffers_of(layer.weight)
    assert all(map(torch.equal, before, after))


def test_a_copy_has_its_own_state():
    _, optimizer = trained()
    for other in (copy.deepcopy(optimizer), pickled(optimizer)):
        for parameter in other.param_groups[0]["params"]:
            parameter.grad = torch.ones(parameter.shape)
        other.step()
        assert {float(state["step"]) for state in other.state.values()} == {2.0}
    assert {float(state["step"]) for state in optimizer.state.values()} == {1.0}
