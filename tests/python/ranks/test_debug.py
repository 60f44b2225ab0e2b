"""The debug mode at forwards: an error on every rank that names the ranks and the weight that
differ; off, nothing is reduced. Steps: ranks/test_debug_steps.py.
"""

import contextlib

import pytest
import torch

import narrowcast as nc
import parallel_models
import ranks
from disagreements import assert_named, odd
from models import GATHERS, build, loss_of, shard

TESTED_FORMATS = GATHERS
SPANNING = [name for name in GATHERS if nc.format(name).tensor_amax]
BY_PASS = next(name for name in GATHERS if nc.format(name).gather == "by pass")
NAME = "blocks.1.down.weight"


@contextlib.contextmanager
def debugging():
    nc.debug()
    try:
        yield
    finally:
        nc.debug(False)


def sharded(mesh, format, **options):
    return shard(build(format, mesh.device_type), mesh, reshard_after_forward=True, **options)


def write(model, factor=3.0):
    with torch.no_grad():
        local = model.get_parameter(NAME).to_local()
        local.copy_(factor * local.master)


def written_by_one(mesh, format):
    model = sharded(mesh, format)
    with debugging():
        loss_of(model, 0, mesh.device_type)
        if odd(mesh):
            write(model)
        loss_of(model, 0, mesh.device_type)


@pytest.mark.parametrize("world", [2, 4])
def test_a_write_on_one_rank(format, world, device):
    answers = ranks.errors(world, device, written_by_one, format)
    assert_named(answers, "the weights of a forward", f"rank {world - 1} has {NAME}, written to")


def part_written_by_one(mesh, format):
    model, x = parallel_models.build(mesh, format), parallel_models.batch(format, 0)
    with debugging(), torch.no_grad():
        model(x)
        if odd(mesh):
            model.up.weight.to_local().fill_(3.0)
        model(x)


@pytest.mark.parametrize("spanning", SPANNING)
def test_a_write_to_one_part(spanning):
    answers = ranks.errors(2, "cpu", part_written_by_one, spanning)
    assert_named(answers, "the weights of a forward", "rank 1 has up.weight", "written to")


def scaled_by_one(mesh, format):
    """Its scale, which each rank has."""
    model = sharded(mesh, format)
    with debugging():
        loss_of(model, 0, mesh.device_type)
        if odd(mesh):
            model.get_parameter(NAME).to_local().amax.fill_(3.0)
        loss_of(model, 0, mesh.device_type)


@pytest.mark.parametrize("spanning", SPANNING)
def test_a_scale_on_one_rank(spanning, device):
    answers = ranks.errors(2, device, scaled_by_one, spanning)
    assert_named(answers, f"rank 1 has {NAME}, gathered, with the scale")


def checkpointed_by_one(mesh, format):
    """One rank alone checkpoints: payloads would differ in size."""
    model = build(format)
    model.reentrant = False if odd(mesh) else None
    shard(model, mesh, reshard_after_forward=True)
    with debugging():
        loss_of(model, 0)


def test_a_checkpoint_on_one_rank():
    answers = ranks.errors(2, "cpu", checkpointed_by_one, BY_PASS)
    assert_named(answers, "rank 1 has blocks.0.up.weight, gathered for both passes")


def count_reductions(mesh, format, writes, is_on):
    model = sharded(mesh, format)
    loss_of(model, 0, mesh.device_type)
    if writes:
        write(model)
    with debugging() if is_on else contextlib.nullcontext():  # noqa: SIM117
        with torch.no_grad(), torch.profiler.profile() as profile:
            loss_of(model, 0, mesh.device_type)
    return sum(event.name == "c10d::allreduce_" for event in profile.events())


def test_nothing_is_reduced_unless_written(format, device):
    """In a forward, by ranks that have done the same."""
    cast = int(nc.format(format).tensor_amax)
    assert ranks.run(2, device, count_reductions, format, False, False) == [0, 0]
    assert ranks.run(2, device, count_reductions, format, True, False) == [cast, cast]
    assert ranks.run(2, device, count_reductions, format, False, True)[0] > 0
