"""Writing in place: the functions of nn.init act on the high-precision value, and the bytes are
made once, when they are next read.
"""

from __future__ import annotations

import torch

from narrowcast.dispatch import implements
from narrowcast.operators import arithmetic, table
from narrowcast.operators.common import refuse_flat
from narrowcast.tensor import QuantizedTensor

aten = torch.ops.aten


@implements(*table.FILL.operators)
def _fill(func, args, kwargs):
    """The new value does not depend on the old one."""
    tensor, *rest = args
    if not isinstance(tensor, QuantizedTensor):
        return arithmetic.run(func, args, kwargs)
    refuse_flat(tensor, func)
    if tensor.master is not None:
        func(tensor.master, *rest, **kwargs)
        tensor._matrix.mark_stale(tensor._view.box.row_end)
        tensor._matrix.initializing = True
        return tensor
    value = torch.empty(tensor.shape, dtype=torch.float32, device=tensor.device)
    tensor.write(func(value, *rest, **kwargs))
    return tensor


@implements(aten.erfinv_.default, aten.mul_.Tensor, aten.add_.Tensor, aten.clamp_.default)
def _go_on_filling(func, args, kwargs):
    """nn.init.trunc_normal_ is uniform_ followed by these. Anywhere else they are arithmetic."""
    tensor, *rest = args
    if not isinstance(tensor, QuantizedTensor) or not tensor._matrix.initializing:
        return arithmetic.run(func, args, kwargs)
    func(tensor.master, *rest, **kwargs)
    tensor._matrix.mark_stale(tensor._view.box.row_end)
    return tensor
