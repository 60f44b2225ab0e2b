"""Optimizers that ranks have otherwise: every rank raises an error in its first step."""

import pytest

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
