"""The debug mode, at forwards, optimizer steps and casts of flat shards: an error on every rank
that names the ranks and the weight that differ, where without it numbers would be wrong or ranks
would wait; off, nothing is reduced.
"""

import contextlib
import functools

import pytest
import torch

import flats
import narrowcast as nc
import parallel_models
import ranks
from disagreements import assert_named, odd
from fused import STOCHASTIC, Flat, gradient_of
from models import GATHERS, build, loss_of, same, shard

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
    assert_named(answers, f"rank 1 has {NAME}, with the scale")


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


def debugged(function):
    """A function of a rank, in debug mode."""

    @functools.wraps(function)
    def call(*arguments):
        nc.debug(True)
        try:
            return function(*arguments)
        finally:
            nc.debug(False)

    return call


def no_gradient(model, optimizer):
    model.head.weight.grad = None


def other_rate(model, optimizer):
    optimizer.param_groups[0]["lr"] *= 2


def other_seed(model, optimizer):
    optimizer.param_groups[0]["seed"] = 8


def other_order(model, optimizer):
    (group,) = optimizer.param_groups
    for key in ("params", "param_names"):
        group[key] = group[key][::-1]


def written(model, optimizer):
    with torch.no_grad():
        local = model.head.weight.to_local()
        local.copy_(2 * local.master)


CHANGES = {
    "no gradient": no_gradient,
    "rate": other_rate,
    "seed": other_seed,
    "order": other_order,
    "written": written,
}


WORDS = {
    "no gradient": ("head.weight", "no gradient", "a gradient"),
    "rate": ("'lr': 0.02", "'lr': 0.01"),
    "seed": ("'seed': 8", "'seed': 7"),
    "order": ("head.weight", "blocks.0"),
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


def trained_twice(mesh, format):
    return train(mesh, format) == debugged(train)(mesh, format)


def test_steps_that_are_alike(format, device):
    assert ranks.run(2, device, trained_twice, format) == [True, True]


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
            elif change is not None:
                parts.optimizer.param_groups[0][change] = 1
        parts.step(gradients)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("gradient", ("weight 1 of a list", "no gradient", "a gradient")),
        ("lr", ("weight 1 of a list", "'lr': 1", "'lr': 0.05")),
        ("seed", ("weight 1 of a list", "'seed': 1", f"'seed': {2**64 - 1}")),
    ],
)
def test_steps_over_flat_shards_that_differ(change, words, device):
    answers = ranks.errors(2, device, fused_steps, change)
    assert_named(answers, "rank 0 has", "rank 1 has", *words)


def test_steps_over_flat_shards_that_are_alike(device):
    assert ranks.errors(2, device, fused_steps, None) == [None, None]


@debugged
def casts(mesh, change):
    """Two lists; the last rank hands in the other one, or casts otherwise."""
    calls, values = [], []
    for place in range(2):
        value = flats.value_of((64 * (1 + place), 64), seed=place, special=False)
        values.append(value.to(mesh.device_type))
        cuts = [0, 1001, value.numel()]
        master, start = flats.shards(values[-1], cuts, mesh.get_local_rank())
        weight = nc.quantize(values[-1], "nvfp4")
        calls.append(([weight], [master], [start], mesh.get_group()))
    for call in calls:
        nc.quantize_master_weights(*call)
    before = calls[0][0][0].rowwise_data.clone()
    try:
        other = odd(mesh) and change == "list"
        options = {"source": "bf16"} if odd(mesh) and change == "source" else {}
        nc.quantize_master_weights(*calls[1 if other else 0], **options)
    finally:
        assert same(calls[0][0][0].rowwise_data, before)


@pytest.mark.parametrize(
    ("change", "words"), [("list", ("64x64", "128x64")), ("source", ("'master'", "'bf16'"))]
)
def test_casts_that_differ(change, words, device):
    answers = ranks.errors(2, device, casts, change)
    assert_named(answers, "quantize_master_weights (debug mode)", "rank 0 has", *words)
