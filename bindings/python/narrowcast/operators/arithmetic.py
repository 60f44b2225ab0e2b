"""Operators that are in no table: arithmetic decodes; arithmetic in place, and views of other
shapes, are refused.
"""

from __future__ import annotations

import torch
from torch.utils._pytree import tree_any, tree_map_only

from narrowcast.operators import table
from narrowcast.operators.common import first_quantized, refuse
from narrowcast.tensor import QuantizedTensor
from narrowcast.tensor.dispatch import implements


@implements(None)
def run(func, args, kwargs):
    """Runs an operator on decoded values, unless it writes to a QuantizedTensor or is a view."""
    if torch.Tag.inplace_view in func.tags:
        return refuse(
            first_quantized((args, kwargs)),
            func,
            "would give this very tensor another shape. Use the operation that returns a view",
        )
    if func._schema.is_mutable and _writes_quantized(func._schema, args, kwargs):
        return refuse(
            first_quantized((args, kwargs)),
            func,
            "would change values in place, and the bytes of a block depend on all its values. "
            "Compute with a plain tensor (weight.master, where there is one, or dequantize()) and "
            "copy_ the result: that sets master and bytes",
        )
    if func.is_view:
        return refuse(
            first_quantized((args, kwargs)),
            func,
            "has no meaning for the bytes, which lie in blocks. Use dequantize() and the plain "
            "tensor that it makes",
        )
    return func(*_decoded(args), **_decoded(kwargs))


@implements(*table.REARRANGE.operators)
def _rearrange(func, args, kwargs):
    return refuse(
        first_quantized((args, kwargs)),
        func,
        "would take rows or columns in another order, or more than once, so their blocks would be "
        "others. Use dequantize() and the plain tensor that it makes, or slices and cat",
    )


def _decoded(values):
    return tree_map_only(QuantizedTensor, lambda tensor: tensor.decode(tensor.dtype), values)


def _writes_quantized(schema, args, kwargs) -> bool:
    """Whether an argument that the operator writes to is a QuantizedTensor, alone or in a list."""
    for index, argument in enumerate(schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        by_position = index < len(args) and not argument.kwarg_only
        value = args[index] if by_position else kwargs.get(argument.name)
        if tree_any(lambda leaf: isinstance(leaf, QuantizedTensor), value):
            return True
    return False


@implements(
    torch.ops._c10d_functional.all_gather_into_tensor.default,
    torch.ops.aten.constant_pad_nd.default,
)
def _gather_shards(func, args, kwargs):
    """DTensor makes a full tensor of shards with these two (full_tensor(), a full state dict; a
    short shard is padded first). A shard that keeps its master gives that: what is loaded from such
    a state dict is then the same weight to the bit.
    """

    def value(tensor):
        if tensor._store.partial and tensor.master is not None:
            return tensor.master.to(tensor.dtype)
        return tensor.decode(tensor.dtype)

    return func(*tree_map_only(QuantizedTensor, value, args), **kwargs)
