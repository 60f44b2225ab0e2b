"""Questions about a QuantizedTensor: about its buffers, which no question makes anew."""

import torch

from narrowcast.operators import table
from narrowcast.operators.common import run_on_values
from narrowcast.tensor import QuantizedTensor
from narrowcast.tensor.dispatch import implements


@implements(*table.IS_PINNED.operators)
def _is_pinned(func, args, kwargs):
    return all(buffer.is_pinned() for buffer in args[0]._store.tensors)


@implements(*table.RECORD_STREAM.operators)
def _record_stream(func, args, kwargs):
    tensor, stream = args
    for buffer in tensor._store.tensors:
        buffer.record_stream(stream)


@implements(*table.EQUAL.operators)
def _equal(func, args, kwargs):
    """Equal bytes are equal values, and found so without decoding; if they differ, and for another
    format or a plain tensor, the values decide.
    """
    one, other = args
    if all(isinstance(tensor, QuantizedTensor) for tensor in args):
        if one.shape != other.shape:
            return False
        if one.format is other.format and _same_bytes(one, other):
            return True
    return run_on_values(func, args, kwargs, _value)


def _value(tensor: QuantizedTensor) -> torch.Tensor:
    """Of a usage that is there."""
    usages = tensor._view.usages
    return tensor.decode(tensor.dtype, "rowwise" if "rowwise" in usages else usages[0])


def _same_bytes(one: QuantizedTensor, other: QuantizedTensor) -> bool:
    """In a usage that both have."""
    for names in ("rowwise_data", "rowwise_scale_inv"), ("columnwise_data", "columnwise_scale_inv"):
        pairs = [(getattr(one, name), getattr(other, name)) for name in (*names, "amax")]
        if pairs[0][0] is not None and pairs[0][1] is not None:
            return all(a is b or torch.equal(a, b) for a, b in pairs)
    return False
