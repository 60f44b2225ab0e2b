"""Writing in place: a fill does not depend on the old value. It acts on the master, if there is
one, and the bytes are made when they are next read.
"""

import torch

from narrowcast.operators import arithmetic, averages, table
from narrowcast.operators.common import refuse_flat
from narrowcast.tensor import QuantizedTensor
from narrowcast.tensor.dispatch import implements


@implements(*table.FILL.operators)
def _fill(func, args, kwargs):
    tensor, *rest = args
    if not isinstance(tensor, QuantizedTensor):
        return arithmetic.run(func, args, kwargs)
    refuse_flat(tensor, func)
    if tensor.master is not None:
        func(tensor.master, *rest, **kwargs)
        tensor._store.mark_stale(tensor._view.region.row_end)
        return tensor
    value = torch.empty(tensor.shape, dtype=torch.float32, device=tensor.device)
    tensor.write(func(value, *rest, **kwargs))
    return tensor


@implements(*table.MERGE.operators)
def _merge(func, args, kwargs):
    """`w += x`. With a factor, as optimizers have it, it is arithmetic."""
    tensor, other = args[:2]
    is_merge = isinstance(tensor, QuantizedTensor) and isinstance(other, torch.Tensor)
    if not is_merge or other.shape != tensor.shape or kwargs.get("alpha", 1) != 1:
        return arithmetic.run(func, args, kwargs)
    refuse_flat(tensor, func)
    tensor._store.keep_master()
    return averages.run(func, args, kwargs)


@implements(*table.LISTS.operators)
def _each(func, args, kwargs):
    """_foreach_name_(tensors, others) is tensor.name_(other) of each pair: torch would run the list
    as one.
    """
    name = func._schema.name.removeprefix("aten::_foreach_")
    for tensor, *others in zip(*(one for one in args if isinstance(one, list)), strict=True):
        getattr(tensor, name)(*others)
