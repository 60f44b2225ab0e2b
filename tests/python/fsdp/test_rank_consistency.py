"""Ranks whose weights differ in what they must have alike: every rank raises one error, which says
which ranks differ in what; none waits for another, decodes with another format or crashes.
"""

import dataclasses

import pytest
from torch import nn

import narrowcast as nc
import parallel_models
import ranks
from disagreements import assert_named, odd
from models import GATHERS, build, build_plain, loss_of, shard
from narrowcast.ranks import facts

TESTED_FORMATS = GATHERS


def forward(mesh, model):
    model = shard(model, mesh, reshard_after_forward=True)
    loss_of(model, 0, mesh.device_type)


def other_format(mesh, format, other):
    plain = build_plain(format, mesh.device_type)
    forward(mesh, nc.convert(plain, other if odd(mesh) else format))


def pairs():
    """Formats whose payloads have one size, and formats whose payloads have not."""
    formats = [nc.format(name) for name in nc.formats()]
    for equal in (True, False):
        for gather in ("rowwise", "by pass"):
            same_gather = [f for f in formats if f.gather == gather and f.row_step <= 32]
            for f in same_gather:
                others = (
                    g
                    for g in same_gather
                    if g is not f
                    and (g.wire_bits_per_element == f.wire_bits_per_element) == equal
                    and g.tensor_amax == f.tensor_amax
                )
                if other := next(others, None):
                    yield f.name, other.name
                    break


@pytest.mark.parametrize(("mine", "other"), [*pairs()])
@pytest.mark.parametrize("world", [2, 4])
def test_another_format(mine, other, world, device):
    answers = ranks.errors(world, device, other_format, mine, other)
    who = "rank 0 has" if world == 2 else "ranks 0, 1, 2 have"
    words = (who, f"rank {world - 1} has", f"in {mine}", f"in {other}", "blocks.0.up.weight")
    assert_named(answers, *words, "quantized weights")


def other_option(mesh, format):
    options = {"recompute": odd(mesh)}
    forward(mesh, build(format, mesh.device_type, **options))


def test_another_option(format, device):
    answers = ranks.errors(2, device, other_option, format)
    assert_named(answers, "recompute=True", "recompute=False", "rank 1 has")


def fewer_weights(mesh, format):
    left_out = "blocks.1.down" if odd(mesh) else ""

    def chosen(name, module):
        return isinstance(module, nn.Linear) and name != left_out

    forward(mesh, nc.convert(build_plain(format, mesh.device_type), format, filter=chosen))


def test_fewer_weights(format, device):
    answers = ranks.errors(4, device, fewer_weights, format)
    assert_named(answers, "ranks 0, 1, 2 have blocks.1.down.weight", "rank 3 has nothing")


def other_resharding(mesh, format):
    model = shard(build(format, mesh.device_type), mesh, reshard_after_forward=not odd(mesh))
    loss_of(model, 0, mesh.device_type)


def test_another_resharding(format, device):
    answers = ranks.errors(2, device, other_resharding, format)
    assert_named(answers, "kept after the forward", "resharded after the forward")


def converted_later(mesh, format, other, after):
    """Weights that are converted when they are shards, perhaps after a first forward."""
    model = build_plain(format, mesh.device_type)
    nc.convert(model.blocks[0], format)
    shard(model, mesh, reshard_after_forward=True)
    if after:
        loss_of(model, 0, mesh.device_type)
    nc.convert(model.blocks[1], other if odd(mesh) else format)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(("mine", "other"), [*pairs()])
def test_shards_converted(mine, other, after, device):
    answers = ranks.errors(2, device, converted_later, mine, other, after)
    assert_named(answers, "what nc.convert converts", f"up.weight in {mine}", f"in {other}")


def other_products(mesh, format, converted_first):
    """Of parts of tensor parallelism: compared where they are converted, or at the first step."""
    matmul = "scaled" if odd(mesh) else "dequantized"
    options = {"converted_first": converted_first, "matmul": matmul}
    model = parallel_models.build(mesh, format, **options)
    model(parallel_models.batch(format, 0)).sum().backward()
    nc.FusedAdam(model.parameters()).step()


@pytest.mark.parametrize("converted_first", [False, True])
def test_other_products(converted_first, device):
    answers = ranks.errors(2, device, other_products, "mxfp8_e4m3", converted_first)
    what = "parameters of FusedAdam" if converted_first else "what nc.convert converts"
    assert_named(answers, what, "up.weight", "for dequantized products", "for scaled products")


def group_that_changes(mesh, format):
    """Other options of weights that are converted as shards, after a first forward."""
    model = build_plain(format, mesh.device_type)
    nc.convert(model.blocks[0], format)
    shard(model, mesh, reshard_after_forward=True)
    loss_of(model, 0, mesh.device_type)
    nc.convert(model.blocks[1], format, recompute=odd(mesh))


def test_a_group_that_changes(format, device):
    answers = ranks.errors(2, device, group_that_changes, format)
    assert_named(answers, "what nc.convert converts", "down.weight", "recompute=True")


def asked_once(mesh, format):
    """What several steps compare: at the first gather of the tree, and at the first step."""
    asked, compare = [], facts._compare
    facts._compare = lambda what, *rest: (asked.append(what), compare(what, *rest))[1]
    try:
        model = shard(build(format, mesh.device_type), mesh, reshard_after_forward=True)
        optimizer = nc.FusedAdam(model.parameters())
        for step in range(3):
            loss_of(model, step, mesh.device_type).backward()
            optimizer.step()
    finally:
        facts._compare = compare
    return asked


def test_asked_once(format, device):
    expected = ["the quantized weights of an FSDP2 model", "parameters of FusedAdam"]
    assert ranks.run(2, device, asked_once, format) == [expected] * 2


def test_facts_are_part_of_a_format():
    """Two builds of a format under one name."""
    f = nc.format(GATHERS[0])
    assert dataclasses.replace(f, cuda=not f.cuda).identity == f.identity
    assert dataclasses.replace(f, scale_rule="another").identity != f.identity
