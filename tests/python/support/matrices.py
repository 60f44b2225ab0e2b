"""Quantized matrices, and the values that their parts must have."""

import torch
from torch import nn

import narrowcast as nc
from models import unit


def of_shape(format, rows=64, columns=96, seed=0, **usages):
    """Values and their quantization."""
    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
    return x, nc.quantize(x, format, **usages)


def of_units(format, rows=3, columns=2, seed=0, less=0, **usages):
    """The same of rows x columns units, less some rows."""
    u = unit(format)
    shape = rows * u - less, columns * u
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return x, nc.quantize(x, format, **usages)


def weight_of(format, seed=0, dtype=torch.float32):
    """A frozen weight, as a parameter."""
    layer = nn.Linear(96, 64, bias=False, dtype=dtype)
    with torch.no_grad():
        layer.weight.copy_(of_shape(format, seed=seed)[0])
    return nc.convert(layer, format, trainable=False).weight


def single_level(format):
    """No scale spans the tensor, so a part's bytes are those of the part quantized alone."""
    return not nc.format(format).tensor_amax


def assert_part(part, q, index):
    """A view has the values of the whole's part, in both usages."""
    assert isinstance(part, nc.QuantizedTensor)
    for usage in ("rowwise", "columnwise"):
        if getattr(part, f"{usage}_data") is not None:
            assert torch.equal(part.dequantize(usage=usage), q.dequantize(usage=usage)[index])
