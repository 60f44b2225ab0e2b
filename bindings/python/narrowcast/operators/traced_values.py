"""What products read of a weight where traces and modes look at operators: its value, by one that
takes the other operands too, so that no graph moves the decoding into another pass
(docs/decisions/0017).
"""

import torch

from narrowcast import registry
from narrowcast._C import Buffers
from narrowcast.registry import USAGES
from narrowcast.tensor import QuantizedTensor, buffers, casting, compiling
from narrowcast.tensor.region import rows_of
from narrowcast.tensor.transposed import strided

_library = torch.library.Library("narrowcast", "FRAGMENT")
_library.define(
    "dequantize_view(Tensor data, Tensor scale, Tensor? amax, Tensor? present, str format, "
    "int usage, ScalarType dtype, Tensor[] operands, int[] shape, int[] stride, int first)"
    " -> Tensor"
)


def read(
    weight: QuantizedTensor, dtype: torch.dtype, backward: bool, operands: list[torch.Tensor]
) -> torch.Tensor:
    """The value that a product of a pass reads, of the weight's shape. `operands`: the plain ones
    of that product.
    """
    store, view = weight._store, weight._view
    store.refresh()  # outside of traces, where autograd does not decompose F.linear
    usage = store.product_usage(backward)
    decoding = casting.decoding(store.bytes, dtype, usage, store.present, operands)
    if view.is_whole:
        value = torch.ops.narrowcast.dequantize(*decoding)
        return value if value.shape == weight.shape else value.reshape(weight.shape)
    place = weight.shape, weight.stride(), view.first
    return torch.ops.narrowcast.dequantize_view(*decoding, *place)


def _dequantize_view(data, scale, amax, present, format, usage, dtype, operands, *place):
    facts, matrix = registry.format(format), compiling.matrix_of(format, usage, data)
    stored = [None] * 4
    stored[2 * usage : 2 * usage + 2] = data, scale
    rows = rows_of(*place, facts.step([USAGES[usage]])[0], *matrix)
    part = buffers.part(Buffers(facts, *matrix, stored, amax, None), rows, [USAGES[usage]])
    # By the operator, which sees whether the usage has come.
    decoding = casting.decoding(part, dtype, USAGES[usage], present, [])
    return strided(torch.ops.narrowcast.dequantize(*decoding), rows, *place)


@compiling.on_meta("dequantize_view")
def _shape(data, scale, amax, present, format, usage, dtype, operands, shape, stride, first):
    return data.new_empty_strided(shape, stride, dtype=dtype)


for _device in ("CPU", "CUDA"):
    _library.impl("dequantize_view", _dequantize_view, _device)
