"""The debug mode, at forwards, optimizer steps and casts of flat shards: an error on every rank
that names the ranks and the weight that differ, where without it numbers would be wrong or ranks
would wait; off, nothing is reduced.
"""

import functools

import pytest
import torch

import flats
import narrowcast as nc
import parallel_models
import ranks
from disagreements import assert_named, odd
from fused import STOCHASTIC, Flat, gradient_of
from models import GATHERS, build, loss_of, shard
from weights import quantized

TESTED_FORMATS = GATHERS

SPANNING = [name for name in GATHERS if nc.format(name).tensor_amax]

NAME = "blocks.1.down.weight"


def debugged(function):
    """A function of a rank, in debug mode."""

    @functools.wraps(function)
    def call(*arguments):
        nc.debug()
        try:
            return function(*arguments)
        finally:
            nc.debug(False)

    return call


def sharded(mesh, format, **options):
    return shard(build(format, mesh.device_type), mesh, reshard_after_forward=True, **options)


def write(model, factor=3.0):
    with torch.no_grad():
        local = model.get_parameter(NAME).to_local()
        local.copy_(factor * local.value)


@debugged
def written_by_one(mesh, format):
    model = sharded(mesh, format)
    loss_of(model, 0, mesh.device_type)
    if odd(mesh):
        write(model)
    loss_of(model, 0, mesh.device_type)


@pytest.mark.parametrize("world", [2, 4])
def test_a_write_on_one_rank(format, world, device):
    answers = ranks.errors(world, device, written_by_one, format)
    assert_named(answers, "the weights of a forward", f"rank {world - 1} has {NAME}, written to")


@debugged
def part_written_by_one(mesh, format):
    model, x = parallel_models.build(mesh, format), parallel_models.batch(format, 0)
    with torch.no_grad():
        model(x)
        if odd(mesh):
            model.up.weight.to_local().fill_(3.0)
        model(x)


@pytest.mark.parametrize("spanning", SPANNING)
def test_a_write_to_one_part(spanning):
    answers = ranks.errors(2, "cpu", part_written_by_one, spanning)
    assert_named(answers, "the weights of a forward", "rank 1 has up.weight", "written to")


@debugged
def scaled_by_one(mesh, format):
    """Its scale, which each rank has."""
    model = sharded(mesh, format)
    loss_of(model, 0, mesh.device_type)
    if odd(mesh):
        quantized(model.get_parameter(NAME).to_local()).tensor_amax.fill_(3.0)
    loss_of(model, 0, mesh.device_type)


@pytest.mark.parametrize("spanning", SPANNING)
def test_a_scale_on_one_rank(spanning, device):
    answers = ranks.errors(2, device, scaled_by_one, spanning)
    assert_named(answers, f"rank 1 has {NAME}, with the scale")


def count_reductions(mesh, format, writes):
    """In a forward, by ranks that have done the same; and in debug mode."""
    model = sharded(mesh, format)
    loss_of(model, 0, mesh.device_type)
    if writes:
        write(model)

    def count():
        with torch.no_grad(), torch.profiler.profile() as profile:
            loss_of(model, 0, mesh.device_type)
        return sum(event.name == "c10d::allreduce_" for event in profile.events())

    return count(), debugged(count)() > 0


def test_nothing_is_reduced_unless_written(format, device):
    cast = int(nc.format(format).tensor_amax)
    assert ranks.run(2, device, count_reductions, format, False) == [(0, True)] * 2
    assert ranks.run(2, device, count_reductions, format, True) == [(cast, True)] * 2


def no_gradient(model, optimizer):
    model.head.weight.grad = None


def other_rate(model, optimizer):
    optimizer.param_groups[0]["lr"] *= 2


def written(model, optimizer):
    with torch.no_grad():
        local = model.head.weight.to_local()
        local.copy_(2 * local.value)


CHANGES = {
    "no gradient": no_gradient,
    "rate": other_rate,
    "written": written,
}

WORDS = {
    "no gradient": ("head.weight", "no gradient", "a gradient"),
    "rate": ("'lr': 0.02", "'lr': 0.01"),
    "written": ("head.weight", "written to"),
}


@debugged
def steps(mesh, format, change):
    """The last rank's second step is another one than the first rank's."""
    device = mesh.device_type
    model = shard(build(format, device), mesh, reshard_after_forward=True)
    options = {"lr": 1e-2, "rounding": "stochastic", "seed": 7}
    optimizer = nc.FusedAdam(model.named_parameters(), **options)
    for step in range(2):
        loss_of(model, step, device).backward()
        if step == 1 and odd(mesh):
            CHANGES[change](model, optimizer)
        optimizer.step()
        assert step == 0


@pytest.mark.parametrize("change", CHANGES)
def test_steps_that_differ(format, device, change):
    answers = ranks.errors(2, device, steps, format, change)
    words = "a step of FusedAdam (debug mode)", "rank 0 has", "rank 1 has"
    assert_named(answers, *words, *WORDS[change])


def train(mesh, format):
    """Losses of steps; in the second, no rank has a gradient of one weight."""
    device = mesh.device_type
    model = shard(build(format, device), mesh, reshard_after_forward=True)
    optimizer = nc.FusedAdam(model.named_parameters(), lr=1e-2)
    losses = []
    for step in range(3):
        loss = loss_of(model, step, device)
        loss.backward()
        if step == 1:
            model.head.weight.grad = None
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@ranks.on(2)
def test_steps_that_are_alike(mesh, format):
    assert train(mesh, format) == debugged(train)(mesh, format)


# ---- flat shards ----


@debugged
def fused_steps(mesh, change):
    """Weights of which the first rank owns all, parts, and nothing."""
    values = [flats.value_of((64, 128), seed=place, special=False) for place in range(3)]
    cuts = [[0, 8192, 8192], [0, 1001, 8192], [0, 0, 8192]]
    parts = Flat(mesh, values, "nvfp4", cuts, STOCHASTIC)
    for step in range(2):
        gradients = [gradient_of((64, 128), step, place) for place in range(3)]
        if step == 1 and odd(mesh):
            if change == "gradient":
                gradients[1] = None
            elif change == "lr":
                parts.optimizer.param_groups[0]["lr"] = 1
        parts.step(gradients)


def test_steps_over_flat_shards_that_differ(device):
    assert ranks.errors(2, device, fused_steps, None) == [None, None]
    for change, words in (("gradient", ("no gradient",)), ("lr", ("'lr': 1", "'lr': 0.05"))):
        answers = ranks.errors(2, device, fused_steps, change)
        assert_named(answers, "rank 0 has", "rank 1 has", "weight 1 of a list", *words)


@debugged
def other_list(mesh):
    """Two lists; the last rank hands in the other one."""
    calls = []
    for place in range(2):
        value = flats.value_of((64 * (1 + place), 64), seed=place, special=False)
        value = value.to(mesh.device_type)
        cuts = [0, 1001, value.numel()]
        master, start = flats.shards(value, cuts, mesh.get_local_rank())
        calls.append(([nc.quantize(value, "nvfp4")], [master], [start], mesh.get_group()))
    for call in calls:
        nc.quantize_master_weights(*call)
    nc.quantize_master_weights(*calls[odd(mesh)])


def test_casts_that_differ(device):
    answers = ranks.errors(2, device, other_list)
    words = "rank 0 has", "64x64", "128x64"
    assert_named(answers, "quantize_master_weights (debug mode)", *words)
