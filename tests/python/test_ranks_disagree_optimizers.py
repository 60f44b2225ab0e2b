"""Optimizers that ranks have otherwise, and steps that fail on one rank: every rank raises an
error, and none waits for another.
"""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

import narrowcast as nc
import ranks
from disagreements import assert_named, odd
from models import GATHERS, build, loss_of, shard

TESTED_FORMATS = GATHERS
SPANNING = [name for name in GATHERS if nc.format(name).tensor_amax]


def step_with(mesh, format, change):
    """A step of optimizers that `change(named parameters)` makes differ on one rank."""
    device = mesh.device_type
    model = shard(build(format, device), mesh, reshard_after_forward=True)
    named, options = [*model.named_parameters()], {}
    if odd(mesh):
        named, options = CHANGES[change](named)
    optimizer = nc.FusedAdam(named, **options)
    loss_of(model, 0, device).backward()
    optimizer.step()


CHANGES = {
    "order": lambda named: ([named[2], *named[:2], *named[3:]], {}),
    "fewer": lambda named: (named[:-1], {}),
    "groups": lambda named: ([{"params": named[:3]}, {"params": named[3:]}], {}),
    "rounding": lambda named: (named, {"rounding": "stochastic", "seed": 3}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_another_optimizer(format, device, change):
    answers = ranks.errors(2, device, step_with, format, change)
    assert_named(answers, "parameters of FusedAdam", "rank 0 has", "rank 1 has")


def over_two_groups(mesh, format):
    """Weights over the rows of a mesh of 2x2 and others over its columns. One rank names one of
    those over its row otherwise: the ranks of the other row hear of it by their columns.
    """
    device = mesh.device_type
    grid = dist.init_device_mesh(device, (2, 2), mesh_dim_names=("rows", "columns"))
    model = build(format, device)
    for block, dimension in zip(model.blocks, ("columns", "rows"), strict=True):
        fully_shard(block, mesh=grid[dimension])
    named = [*model.blocks.named_parameters()]
    if mesh.get_local_rank() == 1:
        named[0] = "another name", named[0][1]
    optimizer = nc.FusedAdam(named)
    optimizer.make_state()
    for _, parameter in named:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()


def test_a_difference_in_one_of_several_groups(device):
    answers = ranks.errors(4, device, over_two_groups, GATHERS[0])
    assert answers[0] == answers[1] and answers[2] == answers[3]
    for answer, words in zip(answers[::2], ("rank 1 has", "another process group"), strict=True):
        assert answer is not None
        assert answer[0] == "DisagreementError" and words in answer[1]


def changed_by_hand(mesh, format):
    """On one rank, after the first step. A GPU's ranks hear of it at the next one."""
    device = mesh.device_type
    model = shard(build(format, device), mesh, reshard_after_forward=True)
    optimizer = nc.FusedAdam(model.named_parameters())
    for step in range(3):
        loss_of(model, step, device).backward()
        if step == 1 and odd(mesh):
            group = optimizer.param_groups[0]
            for key in ("params", "param_names"):
                group[key] = group[key][::-1]
        optimizer.step()
        assert step == 0 or device == "cuda"


@pytest.mark.parametrize("spanning", SPANNING)
def test_changed_by_hand(spanning, device):
    answers = ranks.errors(2, device, changed_by_hand, spanning)
    assert_named(answers, "parameters of FusedAdam", "rank 0 has", "rank 1 has")


def bad_gradient(mesh, format, first):
    """One rank's step raises, and its error is caught. Nothing of it changes; the others hear of
    it, and later steps go on.
    """
    device = mesh.device_type
    model = shard(build(format, device), mesh, reshard_after_forward=True)
    optimizer = nc.FusedAdam(model.named_parameters(), lr=1e-2)
    weight, raised = model.head.weight, []
    for step in range(4):
        loss_of(model, step, device).backward()
        if step == first and odd(mesh):
            weight.grad._local_tensor = weight.grad._local_tensor.double()
        try:
            optimizer.step()
        except (RuntimeError, TypeError) as error:
            raised.append((step, type(error).__name__, str(error)))
        optimizer.zero_grad()
    with torch.no_grad():
        losses = [None] * mesh.size()
        dist.all_gather_object(losses, loss_of(model, 0, device).item())
    return raised, losses, optimizer.state[weight]["step"].item()


def bad_option(mesh, format):
    """One rank's step raises before it has looked at an option that all ranks have changed: what
    it says of its optimizer is out of date, and no rank waits to compare it.
    """
    device = mesh.device_type
    model = shard(build(format, device), mesh, reshard_after_forward=True)
    optimizer = nc.FusedAdam(model.named_parameters(), lr=1e-2)
    (group,), raised = optimizer.param_groups, []
    for step in range(4):
        loss_of(model, step, device).backward()
        group["rounding"] = "nearest" if step == 0 else "stochastic"
        group["lr"] = -1.0 if step == 1 and odd(mesh) else 1e-2
        try:
            optimizer.step()
        except (RuntimeError, ValueError) as error:
            raised.append((step, type(error).__name__))
        optimizer.zero_grad()
    return raised


@pytest.mark.parametrize("spanning", SPANNING)
def test_an_error_where_options_have_changed(spanning, device):
    others, own = ranks.run(2, device, bad_option, spanning)
    heard = (1 if device == "cpu" else 2, "DisagreementError")
    assert others == [heard]
    assert own == [(1, "ValueError"), *([] if device == "cpu" else [heard])]


@pytest.mark.parametrize("spanning", SPANNING)
@pytest.mark.parametrize("first", [0, 1])
def test_an_error_of_one_rank(spanning, device, first):
    (others, losses, steps), (own, losses2, own_steps) = ranks.run(
        2, device, bad_gradient, spanning, first
    )
    assert own[0][:2] == (first, "TypeError") and "head.weight" in own[0][2]
    when = first if device == "cpu" else first + 1
    assert [one[:2] for one in others] == [(when, "DisagreementError")]
    assert "rank 1 could not take its part" in others[0][2]
    assert len(own) == (1 if device == "cpu" else 2)
    assert len({*losses, *losses2}) == 1
    assert (steps, own_steps) == ((4, 3) if device == "cpu" else (3, 2))


def first_step(mesh, format):
    """An option that one rank alone cannot take: it says so, and the others do not wait."""
    model = shard(build(format, mesh.device_type), mesh)
    optimizer = nc.FusedAdam(model.parameters(), lr=1e-2)
    loss_of(model, 0, mesh.device_type).backward()
    before = optimizer.param_groups[0]["lr"]
    if odd(mesh):
        optimizer.param_groups[0]["lr"] = -1.0
    try:
        optimizer.step()
    except (ValueError, RuntimeError) as error:
        kind, message = type(error).__name__, str(error)
    optimizer.param_groups[0]["lr"] = before
    optimizer.step()
    return kind, message


def test_an_error_of_one_rank_in_its_first_step(format, device):
    others, (kind, message) = ranks.run(2, device, first_step, format)
    assert kind == "ValueError" and "lr" in message
    assert others[0] == "DisagreementError"
    assert (
        "rank 1 has" in others[1] and f"first step failed with ValueError: {message}" in others[1]
    )
