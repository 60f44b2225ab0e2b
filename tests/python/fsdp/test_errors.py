"""What cannot be sharded is refused at wrap time, with one message on every rank."""

import dataclasses

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

import narrowcast as nc
import ranks
from disagreements import assert_named
from models import GATHERS
from weights import quantized

TESTED_FORMATS = GATHERS


def wrap(mesh, format, rows, after):
    """Of a format whose scale is known before the step, and whose shards so share nothing."""
    format = dataclasses.replace(nc.format(format), amax="delayed")
    model = nn.Sequential(nn.Linear(64, 256), nn.Linear(256, rows))
    if after:
        fully_shard(model, mesh=mesh)
        nc.convert(model, format)
    else:
        nc.convert(model, format)
        fully_shard(model, mesh=mesh)
    model.unshard()  # the first gather finds what a weight has been cut into


@pytest.mark.parametrize("after", [False, True])
def test_rows_between_row_steps(format, after):
    step = nc.format(format).shard_row_step
    if step == 1:  # every cut is between row steps
        return
    rows = 3 * step
    answers = ranks.errors(2, "cpu", wrap, format, rows, after)
    words = ("1.weight", f"{rows}x256", "2 shards", f"multiples of {step} rows", "filter")
    assert_named(answers, *words, f"Use {4 * step} rows", kind="ValueError")


USES = {
    "read": lambda weight: weight.dequantize(),
    "copy a part": lambda weight: weight[:128].clone(),
    "copy in another dtype": lambda weight: weight.to(torch.bfloat16),
    "write": lambda weight: weight.detach().zero_(),
}


def use_freed(mesh, format, use):
    """A gathered weight that is kept beyond its module's forward."""
    model = nc.convert(nn.Sequential(nn.Linear(64, 256)), format)
    fully_shard(model, mesh=mesh, reshard_after_forward=True)
    model.unshard()
    weight = model[0].weight
    weight.dequantize()
    model.reshard()
    USES[use](weight)


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("world", [1, 2])
def test_freed_bytes(format, device, world, use):
    answers = ranks.errors(world, device, use_freed, format, use)
    words = ("reshard()",) if use == "write" else ("freed", "unshard()")
    assert_named(answers, "0.weight", *words, kind="ValueError")


def read_stale(mesh, format):
    """A shard that was written to, before anything has reduced its amax."""
    model = nc.convert(nn.Sequential(nn.Linear(64, 256)), format)
    fully_shard(model, mesh=mesh)
    with torch.no_grad():
        model(torch.ones(2, 64))  # the first gather makes it a shard
        model.reshard()
        local = model[0].weight.to_local()
        local.copy_(torch.ones(local.shape))
    quantized(local).dequantize()


def test_reading_a_stale_shard(format):
    if nc.format(format).tensor_amax:
        answers = ranks.errors(2, "cpu", read_stale, format)
        assert_named(answers, "0.weight", "next gather", "optimizer step", kind="ValueError")
    else:
        ranks.run(2, "cpu", read_stale, format)
