"""A layer whose weights are cut by tensor parallelism, beside the whole one that it must equal."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import narrowcast as nc
from cut_weights import assert_parts, give_gradients
from models import unit

PLAN = {"up": ColwiseParallel(), "down": RowwiseParallel()}
SEQUENCE_PLAN = {
    "norm": SequenceParallel(),
    "up": ColwiseParallel(input_layouts=Shard(1)),
    "down": RowwiseParallel(output_layouts=Shard(1)),
}


class Layer(nn.Module):
    def __init__(self, width, hidden=None, bias=True):
        super().__init__()
        hidden = hidden or 2 * width
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, hidden, bias=bias)
        self.down = nn.Linear(hidden, width, bias=bias)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


def width_of(format):
    return 2 * unit(format)


def build_plain(format, size=None):
    """`size`: of the layer, its width and perhaps what is hidden."""
    torch.manual_seed(0)
    return Layer(*(size or (width_of(format),)))


def build(mesh, format, plan=PLAN, converted_first=False, size=None, **options):
    plain = build_plain(format, size)
    if converted_first:
        return parallelize_module(nc.convert(plain, format, **options), mesh, plan)
    return nc.convert(parallelize_module(plain, mesh, plan), format, **options)


def batch(format, step, shape=(2, 8), size=None):
    generator = torch.Generator().manual_seed(step)
    width, *_ = size or (width_of(format),)
    return torch.randn(*shape, width, generator=generator)


def assert_trains_as_whole(
    model, format, kind=nc.FusedAdam, sequence=None, rounding="nearest", size=None, **options
):
    """The whole model is given the same gradients: sums over ranks round. Bytes after a step of
    an optimizer of torch's are those of the next forward.
    """
    whole, is_fused = nc.convert(build_plain(format, size), format, **options), kind is nc.FusedAdam
    groups = [groups_of(m, rounding) if is_fused else m.parameters() for m in (model, whole)]
    optimizers = [kind(group, lr=1e-2) for group in groups]
    for step in range(3):
        x = batch(format, step, size=size)
        mine = x if sequence is None else x.chunk(2, 1)[sequence]
        y = model(mine)
        if step == 0 and options.get("matmul") != "scaled":
            expected = whole(x) if sequence is None else whole(x).chunk(2, 1)[sequence]
            torch.testing.assert_close(y, expected)
        (y.square().sum() / 2**10).backward()
        give_gradients(model, whole)
        for one in optimizers:
            one.step()
            one.zero_grad()
    if not is_fused:
        model(x), whole(x)
    assert_parts(model, whole, optimizers, format)
    return model, optimizers[0], whole


def groups_of(model, rounding):
    """Weights whose rows are cut can be rounded stochastically."""
    down = model.down.weight
    rest = [p for p in model.parameters() if p is not down]
    return [{"params": rest, "rounding": rounding}, {"params": [down]}]


def message_of(error, function, *arguments, **named):
    with pytest.raises(error) as caught:
        function(*arguments, **named)
    return str(caught.value)
