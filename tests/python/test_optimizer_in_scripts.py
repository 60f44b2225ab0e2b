"""FusedAdam where a library expects torch's AdamW: parameters that are swapped before the first
step, checkpoints through torch.distributed.checkpoint, AdamW's own state.
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

import narrowcast as nc
import ranks
from models import GATHERS, assert_quantized, assert_same, build, build_plain, same, shard, train
from narrowcast.tensor import dtensors

TESTED_FORMATS = GATHERS
OPTIONS = {"lr": 1e-2, "betas": (0.9, 0.99), "weight_decay": 0.02}


def values(model):
    """Masters, or what is its own master, of the local parts."""
    local = (dtensors.local_of(p).detach() for p in model.parameters())
    return [p.master.clone() if isinstance(p, nc.QuantizedTensor) else p.clone() for p in local]


def shard_and_swap(optimizer, model, mesh):
    """As accelerate does it: other tensors stand in the parameters' places while the model is
    sharded, and are found again by what data_ptr() has said.
    """
    names = {p.data_ptr(): name for name, p in model.named_parameters()}
    for group in optimizer.param_groups:
        for i, p in enumerate(group["params"]):
            group["params"][i] = torch.empty(1, dtype=p.dtype)
            group["params"][i].data_ptr = names[p.data_ptr()]
    shard(model, mesh)
    new = dict(model.named_parameters())
    for group in optimizer.param_groups:
        group["params"] = [new[p.data_ptr] for p in group["params"]]


def test_weights_are_told_apart(format):
    model = build(format)
    numbers = [p.data_ptr() for p in model.parameters()]
    assert len(set(numbers)) == len(numbers)
    assert model.head.weight.data_ptr() == model.head.weight.data_ptr()
    assert model.head.weight.detach().data_ptr() == 0  # torch's staging then copies what it gets
    assert model.to("meta").head.weight.data_ptr() == 0


def swapped(mesh, format):
    trained = []
    for swaps in (True, False):
        model = build(format) if format else build_plain("mxfp4")
        if not swaps:
            shard(model, mesh)
        optimizer = nc.FusedAdam(model.parameters(), lr=1e-2)
        if swaps:
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))  # as accelerate does
            shard_and_swap(optimizer, model, mesh)
        assert len(optimizer.state) == 0
        trained.append((train(model, optimizer, 2), values(model)))
        assert len(optimizer.state) == len([*model.parameters()])
    assert trained[0][0] == trained[1][0]
    assert all(map(same, trained[0][1], trained[1][1]))


@pytest.mark.parametrize("weights", [GATHERS[0], GATHERS[-1], None])
def test_swapped_parameters(weights):
    ranks.run(2, "cpu", swapped, weights)


def test_frozen_parameters_have_no_moments(format):
    """And no gradient is no state, until a state dict is asked for; then all that is trained."""
    model = build(format)
    model.blocks[0].requires_grad_(False)
    optimizer = nc.FusedAdam(model.parameters(), lr=1e-2)
    train(model, optimizer, 1)
    frozen = set(model.blocks[0].parameters())
    assert set(optimizer.state) == set(model.parameters()) - frozen
    model.blocks[0].requires_grad_(True)
    train(model, optimizer, 1, first=1)
    counts = {int(optimizer.state[p]["step"]) for p in frozen}
    assert counts == {1}
    assert {int(optimizer.state[p]["step"]) for p in set(model.parameters()) - frozen} == {2}
    for p in model.parameters():
        if isinstance(p, nc.QuantizedTensor):
            assert_quantized(p.detach(), p.master)


def asked_first(mesh, format):
    """A checkpoint of the state before the first step changes nothing."""
    found = []
    for is_asked in (False, True):
        model = shard(build(format), mesh)
        options = {"lr": 1e-2, "rounding": "stochastic"}
        optimizer = nc.FusedAdam(model.parameters(), **options)
        if is_asked:
            state = get_optimizer_state_dict(model, optimizer)["state"]
            assert {float(one["step"]) for one in state.values()} == {0}
            assert len(state) == len([*model.parameters()])
            saved = {"state": state, "param_groups": optimizer.state_dict()["param_groups"]}
            other = nc.FusedAdam(model.parameters(), **options)
            saved["param_groups"][0]["params"] = [name for name, _ in model.named_parameters()]
            set_optimizer_state_dict(model, other, saved)
            assert len(other.state) == len(state)
        found.append((train(model, optimizer, 2), values(model)))
    assert found[0][0] == found[1][0]
    assert all(map(same, found[0][1], found[1][1]))


def test_asked_for_state_before_the_first_step(format):
    ranks.run(2, "cpu", asked_first, format)


# ---- torch's AdamW ----


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
    optimizer.load_state_dict(theirs.state_dict())
    group = optimizer.param_groups[0]
    assert {key: group[key] for key in OPTIONS} == OPTIONS
    assert group["adamw"] == (kind is torch.optim.AdamW)
    assert group["rounding"] == "nearest"
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        for key, value in theirs.state[q].items():
            assert same(optimizer.state[p][key], value), key
        assert same(optimizer.state[p].get("master", p.detach()), q.detach())
    train(model, optimizer, 1, first=2)
    assert optimizer.state[model.head.weight]["step"] == 3
    assert optimizer.state_dict()["param_groups"][0].keys() >= theirs.param_groups[0].keys()


def sharded_adamw(mesh, format, full):
    plain, theirs, model = of_adamw(format)
    before = dict(plain.named_parameters())
    moments = {name: theirs.state[p]["exp_avg"] for name, p in before.items()}
    other = shard(build_plain(format), mesh)
    sharded = torch.optim.AdamW(other.parameters(), **OPTIONS)
    options = StateDictOptions(full_state_dict=True)
    whole = get_optimizer_state_dict(plain, theirs, options=options)
    set_optimizer_state_dict(other, sharded, copy.deepcopy(whole), options=options)
    state = whole if full else get_optimizer_state_dict(other, sharded)
    shard(model, mesh)
    masters = values(model)
    optimizer = nc.FusedAdam(model.parameters())
    set_optimizer_state_dict(model, optimizer, state, options=options if full else None)
    for name, p in model.named_parameters():
        assert same(optimizer.state[p]["exp_avg"].full_tensor(), moments[name]), name
        assert optimizer.state[p]["step"] == 2
    assert all(map(same, masters, values(model)))
    assert optimizer.param_groups[0]["lr"] == 1e-2
    train(model, optimizer, 1, first=2)


@pytest.mark.parametrize("full", [False, True])
def test_sharded_state_of_adamw(full):
    ranks.run(2, "cpu", sharded_adamw, GATHERS[-1], full)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"amsgrad": True}, "group 0 .* has amsgrad=True: an Adam which divides by"),
        ({"maximize": True}, "group 0 .* has maximize=True"),
    ],
)
def test_an_adam_that_fused_adam_is_not(options, words):
    weight = nn.Parameter(torch.ones(8))
    theirs = torch.optim.AdamW([weight], **options)
    weight.grad = torch.ones(8)
    theirs.step()
    optimizer = nc.FusedAdam([weight])
    with pytest.raises(ValueError, match=words):
        optimizer.load_state_dict(theirs.state_dict())
    assert len(optimizer.state) == 0


@pytest.mark.parametrize("option", ["amsgrad", "maximize", "differentiable"])
def test_what_an_adam_of_torchs_does_is_done_or_refused(option):
    """In a group, as a keyword, and between steps."""
    weight = nn.Parameter(torch.ones(8))
    for make in (
        lambda: nc.FusedAdam([{"params": [weight], option: True}]),
        lambda: nc.FusedAdam([weight], **{option: True}),
    ):
        with pytest.raises(ValueError, match=rf"has {option}=True: an Adam .*no such option"):
            make()
    optimizer = nc.FusedAdam([weight], fused=True, foreach=None, **{option: False})
    weight.grad = torch.ones(8)
    optimizer.step()
    optimizer.param_groups[0][option] = True
    before = weight.detach().clone()
    with pytest.raises(ValueError, match=f"group 0 has {option}=True"):
        optimizer.step()
    assert same(weight, before)


def test_options_that_are_none():
    weight = nn.Parameter(torch.ones(8))
    with pytest.raises(TypeError, match="FusedAdam has no option 'momentum'"):
        nc.FusedAdam([weight], momentum=0.9)
    optimizer = nc.FusedAdam([weight])
    optimizer.param_groups[0]["lr"] = "fast"
    weight.grad = torch.ones(8)
    with pytest.raises(ValueError, match=r"group 0: of .'lr': 'fast'.*could not convert"):
        optimizer.step()


def test_state_of_another_optimizer():
    weight = nn.Parameter(torch.ones(8))
    theirs = torch.optim.SGD([("one.weight", weight)], lr=0.1, momentum=0.9)
    weight.grad = torch.ones(8)
    theirs.step()
    with pytest.raises(ValueError, match=r"has no 'step', only .'momentum_buffer'.*AdamW or Adam"):
        nc.FusedAdam([weight]).load_state_dict(theirs.state_dict())


# ---- libraries' habits ----


def test_gradients_of_zero_that_stay(format):
    """zero_grad(set_to_none=False), clipping and a schedule, as on plain weights."""
    model = build(format)
    optimizer = nc.FusedAdam(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=8)
    for _ in range(2):
        train(model, optimizer, 1)
        model(torch.ones(2, model.width)).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=False)
        assert all(not p.grad.any() for p in model.parameters())
    for p in model.parameters():
        if isinstance(p, nc.QuantizedTensor):
            assert_quantized(p.detach(), p.master)


@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_torchs_optimizers_are_told_of_fused_adam(format, kind, foreach):
    model = build(format)
    optimizer = kind(model.parameters(), lr=1e-2, foreach=foreach)
    before = model.head.weight.detach().clone()
    with pytest.raises(NotImplementedError, match=r"optimizer of such weights is nc\.FusedAdam"):
        train(model, optimizer, 1)
    assert_same(model.head.weight.detach(), before)
