"""What cannot be sharded is refused at wrap time, with one message on every rank."""

import dataclasses

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor

import narrowcast as nc
import ranks
from models import GATHERS

TESTED_FORMATS = GATHERS


def assert_refused(answers, kind, *words):
    """Every rank raised the same error, and its message has all the words."""
    assert None not in answers
    assert len(set(answers)) == 1, answers
    assert answers[0][0] == kind, answers[0]
    for word in words:
        assert word in answers[0][1], (word, answers[0][1])


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


@pytest.mark.parametrize("after", [False, True])
def test_rows_between_row_steps(format, after):
    step = nc.format(format).shard_row_step
    if step == 1:  # every cut is between row steps
        return
    rows = 3 * step
    answers = ranks.errors(2, "cpu", wrap, format, rows, after)
    words = ("1.weight", f"{rows}x256", "2 shards", f"multiples of {step} rows", "filter")
    assert_refused(answers, "ValueError", *words, f"Use {4 * step} rows")


def read(weight):
    weight.dequantize()


def copy(weight):
    weight.clone()


def copy_part(weight):
    weight[:128].clone()


def copy_in_another_dtype(weight):
    weight.to(torch.bfloat16)


def move(weight):
    weight.to("meta")


def copy_to_another(weight):
    nc.quantize(torch.zeros(weight.shape, device=weight.device), weight.format).copy_(weight)


def write(weight):
    weight.detach().zero_()


def write_part(weight):
    part = weight.detach()[:128]
    part.copy_(nc.quantize(torch.zeros(part.shape, device=weight.device), weight.format))


USES = [read, copy, copy_part, copy_in_another_dtype, move, copy_to_another, write, write_part]


def use_freed(mesh, format, use):
    """A gathered weight that is kept beyond its module's forward."""
    model = nc.convert(nn.Sequential(nn.Linear(64, 256)), format)
    fully_shard(model, mesh=mesh, reshard_after_forward=True)
    model.unshard()
    weight = model[0].weight
    weight.dequantize()
    model.reshard()
    use(weight)


@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
@pytest.mark.parametrize("world", [1, 2])
def test_freed_bytes(format, device, world, use):
    answers = ranks.errors(world, device, use_freed, format, use)
    assert_refused(answers, "ValueError", "0.weight", "freed", "unshard()")


def read_stale(mesh, format):
    """A shard that was written to, before anything has reduced its amax."""
    model = nc.convert(nn.Sequential(nn.Linear(64, 256)), format)
    fully_shard(model, mesh=mesh)
    with torch.no_grad():
        local = model[0].weight.to_local()
        local.copy_(torch.ones(local.shape))
    local.dequantize()


def test_reading_a_stale_shard(format):
    if nc.format(format).tensor_amax:
        answers = ranks.errors(2, "cpu", read_stale, format)
        assert_refused(answers, "ValueError", "0.weight", "next gather", "optimizer step")
    else:
        ranks.run(2, "cpu", read_stale, format)


def bad_gradients(mesh, format):
    """Each is refused, and leaves weights, state and steps as they were."""
    model = nc.convert(nn.Sequential(nn.Linear(64, 256, bias=False)), format)
    fully_shard(model, mesh=mesh)
    weight = model[0].weight
    optimizer = nc.FusedAdam(model.parameters())
    before = weight.to_local().rowwise_data.clone()
    seen = []
    for make in (
        lambda: distribute_tensor(torch.ones(256, 64, dtype=torch.float64), mesh, [Shard(0)]),
        lambda: distribute_tensor(torch.ones(256, 64), mesh, [Shard(1)]),
    ):
        weight.grad = None
        gradient = make()
        try:
            weight.grad = gradient
            optimizer.step()
        except (TypeError, ValueError, RuntimeError) as error:
            seen.append(f"{type(error).__name__}: {error}")
    assert torch.equal(before, weight.to_local().rowwise_data)
    assert optimizer.state[weight]["step"] == 0
    return seen


def test_gradients_of_another_layout(format):
    for seen in ranks.run(2, "cpu", bad_gradients, format):
        assert len(seen) == 2
        assert "0.weight" in seen[1]
        assert "[256, 32]" in seen[1]
