"""What torch.compile sees: the decoding of a matrix as an operator of torch,
torch.ops.narrowcast.dequantize, which its graphs can hold.
"""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import UnsupportedOperatorException

from narrowcast import _C, casting, registry
from narrowcast.registry import BUFFERS, buffers_of

_LIBRARY = torch.library.Library("narrowcast", "DEF")
_LIBRARY.define(
    "dequantize(str format, str usage, SymInt rows, SymInt columns, Tensor data, Tensor scale, "
    "Tensor? amax, ScalarType dtype) -> Tensor"
)


def dequantize(format, usage, rows, columns, data, scale, amax, dtype) -> torch.Tensor:
    """The value, [rows, columns] of `dtype`, of the data and scales of one usage. `amax`: the
    tensor's, in formats that have one.
    """
    return torch.ops.narrowcast.dequantize(format, usage, rows, columns, data, scale, amax, dtype)


@torch.library.impl(_LIBRARY, "dequantize", "CompositeExplicitAutograd")
def _run(format, usage, rows, columns, data, scale, amax, dtype):
    value = data.new_empty((rows, columns), dtype=dtype)
    if value.is_meta:
        return value
    given = [None] * len(BUFFERS)
    for buffer, tensor in zip(buffers_of(usage), (data, scale), strict=True):
        given[buffer] = tensor
    described = (rows, columns, value, tuple(given), amax, None)
    stream = casting.stream_of(value.device)
    plugin = registry.format(format).plugin
    _C.dequantize(plugin, usage == "columnwise", [described], stream)
    return value


@torch.library.register_fake("narrowcast::dequantize", lib=_LIBRARY)
def _describe(format, usage, rows, columns, data, scale, amax, dtype):
    return data.new_empty((rows, columns), dtype=dtype)


def leave_graph() -> None:
    """Has torch.compile run the present call as it is, between two graphs. For a product with a
    weight of FSDP2: a graph would keep the bytes of the forward's gather for the backward, whose
    own gather brings others.
    """
    raise UnsupportedOperatorException(torch.nn.functional.linear)
