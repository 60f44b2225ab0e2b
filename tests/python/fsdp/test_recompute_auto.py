"""recompute="auto": activation checkpointing is found at the first gather, however it was made."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed._composable import checkpoint as composable_checkpoint
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.utils.checkpoint import checkpoint

import narrowcast as nc
import ranks
from internals import config_of, payloads_of_group
from models import Block, batch, build, loss_of, one_of_each, same, shard

BY_PASS, ROWWISE = (
    next(n for n in one_of_each(lambda f: f.gather) if nc.format(n).gather == gather)
    for gather in ("by pass", "rowwise")
)


def by_wrapper(model, shard):
    """Before fully_shard, which then wraps the wrapper: torchtitan's order."""
    model.blocks = nn.ModuleList(map(checkpoint_wrapper, model.blocks))
    return shard(model)


def by_wrapper_after(model, shard):
    """After conversion and fully_shard."""
    model = shard(model)
    apply_activation_checkpointing(model, check_fn=lambda m: isinstance(m, Block))
    return model


def by_wrapper_within(model, shard):
    """Around a layer of what is sharded."""
    for block in model.blocks:
        block.up = checkpoint_wrapper(block.up)
    return shard(model)


def by_attribute(model, shard):
    """As Hugging Face does it: the layer asks its attribute, and calls torch's function within."""
    model = shard(model)
    for block in model.blocks:
        block.gradient_checkpointing = True
        plain = block.forward
        block.forward = lambda x, plain=plain: checkpoint(plain, x, use_reentrant=False)
    return model


def by_composable(model, shard):
    for block in model.blocks:
        composable_checkpoint(block)
    return shard(model)


def by_call(model, shard):
    model.reentrant = False
    return shard(model)


def by_reentrant_call(model, shard):
    model.reentrant = True
    return shard(model)


WAYS = [
    by_wrapper,
    by_wrapper_after,
    by_wrapper_within,
    by_attribute,
    by_composable,
    by_call,
    by_reentrant_call,
]


def train(model):
    """The gradients of two steps."""
    gradients = []
    for step in range(2):
        model.zero_grad()
        x, y = batch(model, step)  # reentrant checkpoints want inputs with gradients
        F.mse_loss(model(x.requires_grad_()), y).backward()
        gradients += [p.grad.full_tensor() for p in model.parameters()]
    return gradients


# Where columnwise follows from rowwise, nobody asks.
CASES = [*((BY_PASS, way) for way in WAYS), (ROWWISE, by_call)]


@pytest.mark.parametrize(("name", "way"), CASES)
@ranks.on(2, "cpu")
def test_found(mesh, name, way):
    def sharded(model):
        return shard(model, mesh, reshard_after_forward=True)

    expected = train(sharded(build(name, recompute=False)))
    got = train(way(build(name), sharded))
    assert all(same(a, b) for a, b in zip(got, expected, strict=True))


@ranks.on(2, "cpu")
def test_unshard_by_hand(mesh, format=BY_PASS):
    """unshard() before the first forward serves the backward too, where nothing is resharded in
    between.
    """
    model = shard(build(format), mesh, reshard_after_forward=True)
    expected = train(shard(build(format, recompute=False), mesh, reshard_after_forward=True))
    for module in (model, *model.blocks):
        module.unshard()
        module.set_reshard_after_forward(False, recurse=False)
    got = train(model)
    assert all(same(a, b) for a, b in zip(got, expected, strict=True))


def count_gathered(mesh, format):
    """Payloads of each pass, without and with a wrapper: whoever has none gathers no more."""
    counts = []
    for way in (None, by_wrapper):
        model = build(format)
        sharded = lambda m: shard(m, mesh, reshard_after_forward=True)  # noqa: E731
        model = sharded(model) if way is None else way(model, sharded)
        loss_of(model, 0).backward()
        counts.append(nc.summary(model).gathered)
        payloads = payloads_of_group(model.blocks[0].down.weight)
        counts.append([len(of_all[0]) for of_all in payloads])
    return counts


def test_no_more_is_gathered_than_must_be():
    plain, payloads, wrapped, more = ranks.run(2, "cpu", count_gathered, BY_PASS)[0]
    assert wrapped > plain
    assert sum(more) > sum(payloads)


def test_the_option():
    with pytest.raises(ValueError, match='recompute is True, False or "auto"'):
        nc.convert(nn.Linear(64, 64), BY_PASS, recompute="yes")
    layer = nc.convert(nn.Linear(64, 64), BY_PASS)
    assert config_of(layer.weight).recompute is None
    assert torch.equal(layer(torch.zeros(1, 64)), layer.bias[None])
