"""Models of one weight to save; and QuantizedTensors as checkpoints have them: the arguments of
narrowcast.tensor.rebuild.
"""

import io

import torch
from torch import nn

import narrowcast as nc
from models import unit
from narrowcast.tensor import rebuild
from narrowcast.tensor.serialize import BUFFERS, SPANNING

NAMES = BUFFERS + SPANNING
FIELDS = (
    *("format", "shape", "dtype", "tensors", "name", "recompute", "partial", "flattened"),
    *("requires_grad", "is_parameter", "matmul"),
)


def weight_of(format, dtype=torch.float32):
    """A frozen parameter of bytes."""
    layer = nn.Linear(unit(format), 2 * unit(format), bias=False, dtype=dtype)
    return nc.convert(layer, format, trainable=False).weight


def parts_of(tensor):
    """The arguments of rebuild, by name, and those tensors that are there."""
    _, arguments = tensor.__reduce_ex__(2)
    facts = dict(zip(FIELDS, arguments, strict=True))
    tensors = dict(zip(NAMES, facts.pop("tensors"), strict=True))
    return facts, {part: tensor for part, tensor in tensors.items() if tensor is not None}


class Changed:
    """Pickles as a call of rebuild with these parts."""

    def __init__(self, facts, tensors):
        listed = [tensors.get(part) for part in NAMES]
        self.arguments = tuple({**facts, "tensors": listed}[field] for field in FIELDS)

    def __reduce__(self):
        return rebuild, self.arguments


def load(facts, tensors):
    """As a checkpoint has them."""
    file = io.BytesIO()
    torch.save({"one.weight": Changed(facts, tensors)}, file)
    file.seek(0)
    return torch.load(file, weights_only=True)["one.weight"]


def layer(format, dtype=torch.float32, **options):
    """A plain model of one weight. `options`: nn.Linear's."""
    n = unit(format)
    return nn.Sequential(nn.Linear(n, n, bias=False, dtype=dtype, **options))


def converted(format, dtype=torch.float32, **options):
    """The same in the format."""
    return nc.convert(layer(format, dtype, **options), format)
