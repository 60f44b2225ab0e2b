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


def other_format(mesh, format, other):
    plain = build_plain(format, mesh.device_type)
    model = nc.convert(plain, other if odd(mesh) else format)
    loss_of(shard(model, mesh, reshard_after_forward=True), 0, mesh.device_type)


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
def test_another_format(mine, other, device):
    answers = ranks.errors(4, device, other_format, mine, other)
    who = "rank 0 has", "rank 3 has", f"in {mine}", f"in {other}", "head.weight"
    assert_named(answers, *who, "quantized weights")


def otherwise(mesh, format, change):
    """One rank makes its model in another way."""
    is_odd, reshard = odd(mesh), True
    options = {"recompute": is_odd} if change == "option" else {}
    if change == "fewer":
        left_out = "blocks.1.down" if is_odd else ""
        options["filter"] = lambda name, one: isinstance(one, nn.Linear) and name != left_out
    if change == "resharding":
        reshard = not is_odd
    model = nc.convert(build_plain(format, mesh.device_type), format, **options)
    loss_of(shard(model, mesh, reshard_after_forward=reshard), 0, mesh.device_type)


CHANGES = {
    "option": ("recompute=True", "recompute=False", "rank 1 has"),
    "fewer": ("rank 0 has blocks.1.down.weight", "rank 1 has nothing"),
    "resharding": ("kept after the forward", "resharded after the forward"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_another_model(format, device, change):
    assert_named(ranks.errors(2, device, otherwise, format, change), *CHANGES[change])


def converted_later(mesh, format, other, after):
    """Weights that are converted when they are shards, perhaps after a first forward."""
    model = build_plain(format, mesh.device_type)
    nc.convert(model.blocks[0], format)
    shard(model, mesh, reshard_after_forward=True)
    if after:
        loss_of(model, 0, mesh.device_type)
    nc.convert(model.blocks[1], other if odd(mesh) else format)


@pytest.mark.parametrize("after", [False, True])
def test_shards_converted(after, device):
    mine, other = next(pairs())
    answers = ranks.errors(2, device, converted_later, mine, other, after)
    assert_named(answers, "what nc.convert converts", f"up.weight in {mine}", f"in {other}")


def other_products(mesh, format, converted_first):
    """Of parts of tensor parallelism: compared where they are converted, or at the first step."""
    matmul = "scaled" if odd(mesh) else "dequantized"
    options = {"converted_first": converted_first, "matmul": matmul}
    model = parallel_models.build(mesh, format, **options).to(mesh.device_type)
    model(parallel_models.batch(format, 0).to(mesh.device_type)).sum().backward()
    nc.FusedAdam(model.parameters()).step()


@pytest.mark.parametrize("converted_first", [False, True])
def test_other_products(converted_first, device):
    answers = ranks.errors(2, device, other_products, "mxfp8_e4m3", converted_first)
    what = "parameters of FusedAdam" if converted_first else "what nc.convert converts"
    assert_named(answers, what, "up.weight", "for dequantized products", "for scaled products")


def asked_once(mesh, format):
    """What several steps compare: at the first gather of the tree, and at the first step."""
    asked, compare = [], facts._compare
    with pytest.MonkeyPatch.context() as patch:
        counted = lambda what, *rest: (asked.append(what), compare(what, *rest))  # noqa: E731
        patch.setattr(facts, "_compare", counted)
        model = shard(build(format, mesh.device_type), mesh, reshard_after_forward=True)
        optimizer = nc.FusedAdam(model.parameters())
        for step in range(3):
            loss_of(model, step, mesh.device_type).backward()
            optimizer.step()
    return asked


def test_asked_once(format, device):
    expected = ["the quantized weights of an FSDP2 model", "parameters of FusedAdam"]
    assert ranks.run(2, device, asked_once, format) == [expected] * 2


def test_facts_are_part_of_a_format():
    """Two builds of a format under one name."""
    f = nc.format(GATHERS[0])
    assert dataclasses.replace(f, cuda=not f.cuda).identity == f.identity
    assert dataclasses.replace(f, scale_rule="another").identity != f.identity
