"""FusedAdam in the place of torch's AdamW and Adam: each goes on from the other's state, and
FusedAdam does or refuses what their options ask for.
"""

import copy

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import fully_shard

import narrowcast as nc
import ranks
from models import GATHERS, build, build_plain, local_values, one_of_each, same, shard, train
from weights import value_of

TESTED_FORMATS = GATHERS
KINDS = one_of_each(lambda f: (f.is_delayed, f.columnwise_derived))


def model_for(seed, format=None):
    torch.manual_seed(seed)
    model = nn.Linear(64, 64)
    return model if format is None else nc.convert(model, format)


def step(model, optimizer):
    model(torch.ones(4, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_there_and_back(kind):
    """AdamW goes on from a state of FusedAdam's, and FusedAdam from that."""
    ours = model_for(0, kind)
    optimizer = nc.FusedAdam(ours.parameters(), lr=0.1)
    step(ours, optimizer)
    plain = model_for(1)
    plain.load_state_dict(ours.state_dict())
    adamw = torch.optim.AdamW(plain.parameters(), lr=0.1)
    adamw.load_state_dict(optimizer.state_dict())
    step(plain, adamw)
    back = model_for(2, kind)
    optimizer = nc.FusedAdam(back.parameters(), lr=0.1)
    back.load_state_dict(plain.state_dict())
    optimizer.load_state_dict(copy.deepcopy(adamw.state_dict()))
    assert torch.equal(back.weight.value, plain.weight)
    assert torch.equal(back.bias, plain.bias)
    state, expected = optimizer.state[back.weight], adamw.state[plain.weight]
    assert int(state["step"]) == 2
    assert torch.equal(state["exp_avg"], expected["exp_avg"])


OPTIONS = {"lr": 1e-2, "betas": (0.9, 0.99), "weight_decay": 0.02}


def of_adamw(format, kind=torch.optim.AdamW):
    """A plain model that AdamW has trained, and a converted one of the same values."""
    plain, model = build_plain(format), build(format)
    theirs = kind(plain.parameters(), **OPTIONS)
    train(plain, theirs, 2)
    model.load_state_dict(plain.state_dict())
    return plain, theirs, model


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.Adam])
def test_state_of_adamw(format, kind):
    plain, theirs, model = of_adamw(format, kind)
    optimizer = nc.FusedAdam(model.parameters())
    optimizer.load_state_dict(copy.deepcopy(theirs.state_dict()))
    group = optimizer.param_groups[0]
    assert {key: group[key] for key in OPTIONS} == OPTIONS
    assert group["decoupled_weight_decay"] == (kind is torch.optim.AdamW)
    assert group["rounding"] == "nearest"
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        for key, value in theirs.state[q].items():
            assert same(optimizer.state[p][key], value), key
        assert same(value_of(p), q.detach())
    train(model, optimizer, 1, first=2)
    assert optimizer.state[model.head.weight]["step"] == 3


@ranks.on(2, "cpu")
def test_sharded_state_of_adamw(mesh, format=GATHERS[-1]):
    plain, theirs, model = of_adamw(format)
    before = dict(plain.named_parameters())
    moments = {name: theirs.state[p]["exp_avg"] for name, p in before.items()}
    other = shard(build_plain(format), mesh)
    sharded = torch.optim.AdamW(other.parameters(), **OPTIONS)
    options = StateDictOptions(full_state_dict=True)
    whole = get_optimizer_state_dict(plain, theirs, options=options)
    set_optimizer_state_dict(other, sharded, copy.deepcopy(whole), options=options)
    shard(model, mesh)
    values = local_values(model)
    optimizer = nc.FusedAdam(model.parameters())
    optimizer.load_state_dict(copy.deepcopy(sharded.state_dict()))
    for name, p in model.named_parameters():
        assert same(optimizer.state[p]["exp_avg"].full_tensor(), moments[name]), name
        assert optimizer.state[p]["step"] == 2
    assert all(map(same, values, local_values(model)))
    assert optimizer.param_groups[0]["lr"] == 1e-2
    train(model, optimizer, 1, first=2)


@pytest.mark.parametrize("option", ["amsgrad", "maximize"])
def test_an_adam_that_fused_adam_is_not(option):
    weight = nn.Parameter(torch.ones(8))
    theirs = torch.optim.AdamW([weight], **{option: True})
    weight.grad = torch.ones(8)
    theirs.step()
    optimizer = nc.FusedAdam([weight])
    with pytest.raises(NotImplementedError, match=f"group 0 has {option}=True"):
        optimizer.load_state_dict(theirs.state_dict())
    assert len(optimizer.state) == 0


@pytest.mark.parametrize("option", ["amsgrad", "maximize", "differentiable"])
def test_what_an_adam_of_torchs_does_is_done_or_refused(option):
    """In a group, as a keyword, and between steps."""
    weight = nn.Parameter(torch.ones(8))
    for make in (
        lambda: nc.optim.AdamW([{"params": [weight], option: True}]),
        lambda: nc.optim.AdamW([weight], **{option: True}),
    ):
        with pytest.raises(NotImplementedError, match=rf"has {option}=True: not an option"):
            make()
    optimizer = nc.optim.AdamW([weight], fused=True, foreach=None, **{option: False})
    weight.grad = torch.ones(8)
    optimizer.step()
    optimizer.param_groups[0][option] = True
    before = weight.detach().clone()
    with pytest.raises(NotImplementedError, match=f"group 0 has {option}=True"):
        optimizer.step()
    assert same(weight, before)


def test_a_rate_that_is_no_number():
    weight = nn.Parameter(torch.ones(8))
    optimizer = nc.FusedAdam([weight])
    optimizer.param_groups[0]["lr"] = "fast"
    weight.grad = torch.ones(8)
    with pytest.raises(ValueError, match=r"group 0: could not convert .*'lr': 'fast'"):
        optimizer.step()


def test_state_of_another_optimizer():
    weight = nn.Parameter(torch.ones(8))
    theirs = torch.optim.SGD([("one.weight", weight)], lr=0.1, momentum=0.9)
    weight.grad = torch.ones(8)
    theirs.step()
    with pytest.raises(ValueError, match=r"has no 'step', only .'momentum_buffer'"):
        nc.FusedAdam([weight]).load_state_dict(theirs.state_dict())


@pytest.mark.parametrize("name", one_of_each(lambda f: f.tensor_amax))
@pytest.mark.parametrize("world", [1, 2])
@ranks.on("world", "cpu")
def test_fully_shard_after_the_optimizer(mesh, name):
    model = nc.convert(nn.Sequential(nn.Linear(64, 256, bias=False)), name)
    optimizer = nc.FusedAdam(model.parameters(), lr=1e-2)
    fully_shard(model, mesh=mesh)
    model(torch.ones(2, 64)).sum().backward()
    words = r"0\.weight: fully_shard has replaced this weight.*after fully_shard"
    with pytest.raises(RuntimeError, match=words):
        optimizer.step()
