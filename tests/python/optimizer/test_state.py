"""FusedAdam's state, which may be asked for early, and its state dicts; those that do not fit are
an error before anything changes, but parameters that were frozen, or are, may be missing.
"""

import copy
import io

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

import narrowcast as nc
import ranks
from models import (
    GATHERS,
    assert_equal,
    assert_quantized,
    build,
    build_plain,
    local_values,
    one_of_each,
    same,
    shard,
    train,
)
from weights import value_of

TESTED_FORMATS = GATHERS


def trained(format, seed=0, steps=2, **options):
    model = build(format, seed=seed)
    optimizer = nc.FusedAdam(model.parameters(), lr=1e-2, **options)
    train(model, optimizer, steps)
    return model, optimizer


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("state_dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", one_of_each(lambda f: f.is_delayed))
def test_layout(name, dtype, state_dtype):
    """State is made when it is needed."""
    model = build(name, dtype=dtype)
    optimizer = nc.FusedAdam(model.parameters(), state_dtype=state_dtype)
    assert len(optimizer.state) == 0
    optimizer.make_state()
    for p in model.parameters():
        state = optimizer.state[p]
        is_converted = isinstance(p, nc.MasterWeight)
        own = dtype != torch.float32 and not is_converted
        history = {"history"} if is_converted and nc.format(name).is_delayed else set()
        master = {"master"} if own else set()
        assert set(state) == {"step", "exp_avg", "exp_avg_sq"} | master | history
        assert state["step"].shape == ()
        assert (state["step"].dtype, state["step"].device.type) == (torch.float32, "cpu")
        for moment in ("exp_avg", "exp_avg_sq"):
            assert type(state[moment]) is torch.Tensor
            assert (state[moment].shape, state[moment].dtype) == (p.shape, state_dtype)
            assert state[moment].count_nonzero() == 0
        if own:
            assert (state["master"].shape, state["master"].dtype) == (p.shape, torch.float32)
    plain = build_plain(name, dtype=dtype)
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        assert same(optimizer.state[p].get("master", value_of(p)), q.detach().float())


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
        if isinstance(p, nc.MasterWeight):
            assert_quantized(p, p.value)


@ranks.on(2, "cpu")
def test_asked_for_state_before_the_first_step(mesh, format):
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
        found.append((train(model, optimizer, 2), local_values(model)))
    assert found[0][0] == found[1][0]
    assert all(map(same, found[0][1], found[1][1]))


@pytest.mark.parametrize("through_file", [False, True])
@pytest.mark.parametrize("state_dtype", [torch.float32, torch.bfloat16], ids=str)
def test_round_trip(format, through_file, state_dtype):
    one = trained(format, state_dtype=state_dtype)
    other = trained(format, seed=3, steps=1, state_dtype=state_dtype)
    weights, state = one[0].state_dict(), one[1].state_dict()
    if through_file:
        file = io.BytesIO()
        torch.save((weights, state), file)
        file.seek(0)
        weights, state = torch.load(file, weights_only=True)
    else:
        weights, state = copy.deepcopy((weights, state))
    other[0].load_state_dict(weights)
    other[1].load_state_dict(state)
    assert_equal(one, other)
    assert train(*one, 2, first=2) == train(*other, 2, first=2)
    assert_equal(one, other)


def test_loading_keeps_the_state_tensors(format):
    """A launch's table points to them."""
    one, other = trained(format), trained(format, seed=3)
    before = {p: {k: v.data_ptr() for k, v in other[1].state[p].items()} for p in other[1].state}
    other[1].load_state_dict(one[1].state_dict())
    for p, pointers in before.items():
        assert {k: v.data_ptr() for k, v in other[1].state[p].items()} == pointers


def test_a_step_goes_on_with_what_the_model_was_loaded_with(format):
    model, optimizer = trained(format)
    plain = build_plain(format, seed=9)
    model.load_state_dict(plain.state_dict())
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        assert same(value_of(p), q.detach())
    other = build(format, seed=9)
    fresh = nc.FusedAdam(other.parameters(), lr=1e-2)
    fresh.load_state_dict(optimizer.state_dict())
    assert train(model, optimizer, 2) == train(other, fresh, 2)


def test_groups_are_loaded(format):
    one = build(format), build(format)
    first = nc.FusedAdam(one[0].parameters(), lr=0.5, weight_decay=0.3)
    second = nc.FusedAdam(one[1].parameters())
    hooks = []
    second.register_load_state_dict_pre_hook(lambda *_: hooks.append("pre"))
    second.register_load_state_dict_post_hook(lambda *_: hooks.append("post"))
    second.load_state_dict(first.state_dict())
    assert (second.param_groups[0]["lr"], second.param_groups[0]["weight_decay"]) == (0.5, 0.3)
    assert hooks == ["pre", "post"]


def test_deepcopied_state_dicts_are_not_followed(format):
    model, optimizer = trained(format)
    saved = copy.deepcopy(optimizer.state_dict())
    other = trained(format, seed=3)
    other[1].load_state_dict(saved)
    train(*other, 1)
    other[1].load_state_dict(saved)
    other[0].load_state_dict(model.state_dict())
    assert_equal((model, optimizer), other)


def other_shape(state):
    state["state"][0]["exp_avg"] = torch.ones(3)


def more_groups(state):
    state["param_groups"].append({"params": []})


def fewer_parameters(state):
    state["param_groups"][0]["params"].pop()


def test_what_is_frozen_has_no_state(format):
    """torch's distributed checkpoints have no state of it, so a load must not ask for it."""
    layer = nc.convert(nn.Linear(64, 64), format)
    layer.weight.requires_grad_(False)
    optimizer = nc.optim.AdamW(layer.parameters())
    optimizer.make_state()
    assert [one is layer.bias for one in optimizer.state] == [True]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (other_shape, r"one.weight: exp_avg has shape \(3,\) in the state dict .*, \(64, 64\)"),
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


def test_parameters_that_were_frozen_begin_anew(format):
    """Of a checkpoint from before they were trained, in a new optimizer."""
    torch.manual_seed(0)
    model = nc.convert(nn.Sequential(nn.Linear(96, 96), nn.Linear(96, 96)), format)
    model[0].requires_grad_(False)
    saved = stepped(model).state_dict()
    model[0].requires_grad_(True)
    optimizer = nc.FusedAdam(model.parameters())
    optimizer.load_state_dict(saved)
    before = model[0].weight.value.clone()
    assert not optimizer.state[model[0].weight]
    model(torch.ones(2, 96)).sum().backward()
    optimizer.step()
    steps = [int(optimizer.state[layer.weight]["step"]) for layer in model]
    assert steps == [1, 2]
    assert not same(model[0].weight.value, before)


def stepped(model):
    optimizer = nc.FusedAdam(model.parameters())
    model(torch.ones(2, 96)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return optimizer


def test_an_empty_entry_is_no_state(format):
    """Looking at `optimizer.state[p]` of a frozen parameter leaves one. torch's optimizers load it;
    a parameter that has state here and none there begins anew.
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
    optimizer.load_state_dict(saved)
    assert not optimizer.state[model[1].weight]
