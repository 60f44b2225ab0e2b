"""FusedAdam where a library expects torch's AdamW: parameters that are swapped before the first
step, state that is asked for early, habits of training loops.
"""

import copy
import subprocess
import sys

import pytest
import torch
from torch.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

import narrowcast as nc
import ranks
from models import GATHERS, assert_quantized, build, build_plain, local_values, same, shard, train

TESTED_FORMATS = GATHERS


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
    moved = model.to("meta").head.weight
    assert isinstance(moved, nc.MasterWeight) and moved.data_ptr() == 0


@pytest.mark.parametrize("weights", [GATHERS[0], GATHERS[-1], None])
@ranks.on(2, "cpu")
def test_swapped_parameters(mesh, weights):
    trained = []
    for swaps in (True, False):
        model = build(weights) if weights else build_plain("mxfp4")
        if not swaps:
            shard(model, mesh)
        optimizer = nc.FusedAdam(model.parameters(), lr=1e-2)
        if swaps:
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))  # as accelerate does
            shard_and_swap(optimizer, model, mesh)
        assert len(optimizer.state) == 0
        trained.append((train(model, optimizer, 2), local_values(model)))
        assert len(optimizer.state) == len([*model.parameters()])
    assert trained[0][0] == trained[1][0]
    assert all(map(same, trained[0][1], trained[1][1]))


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
        if isinstance(p, nc.MasterWeight):
            assert_quantized(p, p.value)


def test_a_torch_that_asks_for_state_otherwise():
    """torch.distributed.checkpoint's step that is none is known by its function: where that has
    another name, a first step is an error, and no real step.
    """
    other = "import torch.distributed.checkpoint.state_dict as asks; del asks._init_optim_state"
    step = "import torch, narrowcast as nc; nc.FusedAdam([torch.ones(8)]).step()"
    answer = subprocess.run(
        [sys.executable, "-c", f"{other}; {step}"], capture_output=True, text=True
    )
    assert answer.returncode == 1
    assert "has no attribute '_init_optim_state'" in answer.stderr
