"""Weights that ranks own flat shards of, for tests: poisoned, so that what is written is seen."""

import torch
import torch.distributed as dist

import narrowcast as nc
from internals import bytes_of
from models import BUFFERS
from narrowcast.conversion.convert import convert_layer

POISON = 0xA5


def value_of(shape, seed=0, special=True):
    """float32 on the CPU, the same on all ranks: sizes of all kinds; infinities and NaN."""
    generator = torch.Generator().manual_seed(seed)
    value = torch.randn(shape, generator=generator) * torch.rand(shape, generator=generator).exp2()
    if special and value.numel() > 40:
        places = torch.randperm(value.numel(), generator=generator)[:6]
        odd = [torch.inf, -torch.inf, torch.nan, -0.0, 1e-40, 0.0]
        value.view(-1)[places] = torch.tensor(odd)
    return value


def holds(format, shape):
    try:
        nc.quantize(torch.zeros(shape), format)
    except ValueError:
        return False
    return True


def stored(weight):
    """Its buffers, by their names, as bytes: what the weight's store has, and nothing derived."""
    bytes = bytes_of(weight)
    every = dict(zip(BUFFERS, (*bytes.buffers, bytes.amax), strict=True))
    return {name: one.view(torch.uint8) for name, one in every.items() if one is not None}


def poisoned(value, format, device="cpu", **options):
    """A weight whose bytes nobody has made, padding left aside, which is zero for ever; a history
    is that of the value, if there is one.
    """
    weight = nc.quantize(value.to(device), format, **options)
    poison(weight)
    return weight


def poison(weight):
    for name, one in stored(weight).items():
        rows, columns = used(weight, name, one)
        one.view(-1, one.shape[-1])[:rows, :columns] = POISON


def used(weight, name, buffer):
    """The rows and the bytes of each that are no padding."""
    layout = weight.format.columnwise if "column" in name else weight.format.rowwise
    if "scale" not in name or layout.block == "tensor":
        return buffer.numel(), buffer.shape[-1]
    sides = weight.numel() // weight.shape[-1], weight.shape[-1]
    rows, columns = (-(-side // per) for side, per in zip(sides, layout.scale_per, strict=True))
    if layout.scale_transposed:
        rows, columns = columns, rows
    return rows, columns * layout.scale_bytes


def is_written_rightly(weight, expected):
    """Where something is written, it is what is expected."""
    want = stored(expected)
    return all(
        torch.all((one == want[name]) | (one == POISON)) for name, one in stored(weight).items()
    )


def gather(weight, expected, group=None):
    """The bytes of all ranks in one weight: each byte as somebody has written it. False if some
    rank has written another byte than expected, or nobody has.
    """
    want = stored(expected)
    for name, one in stored(weight).items():
        right = (one == want[name]).to(torch.uint8)
        dist.all_reduce(right, op=dist.ReduceOp.MAX, group=group)
        if not right.all():
            return False
        one.copy_(want[name])
    return True


def convert(layer, format):
    """As Megatron's layers are converted: bytes, and for once the value that they were made of."""
    convert_layer(layer, "weight", format, "dequantized")


def shards(value, cuts, rank):
    """The master shard of a rank, which begins at cuts[rank], and its offset."""
    begin, end = cuts[rank], cuts[rank + 1]
    return (value.reshape(-1)[begin:end].clone(), begin) if begin < end else (None, None)
