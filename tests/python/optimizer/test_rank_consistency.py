"""Optimizers that ranks have otherwise: every rank raises an error in its first step."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

import narrowcast as nc
import ranks
from disagreements import assert_named, odd
from models import GATHERS, build, loss_of, shard

TESTED_FORMATS = GATHERS


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
