"""Operations on lists of tensors that are what they are on each: torch would run them as one."""

from __future__ import annotations

from narrowcast.operators import table
from narrowcast.tensor.dispatch import implements


@implements(*table.LISTS.operators)
def _each(func, args, kwargs):
    """_foreach_name_(tensors, others) is tensor.name_(other) of each pair."""
    name = func._schema.name.removeprefix("aten::_foreach_")
    for tensor, *others in zip(*(one for one in args if isinstance(one, list)), strict=True):
        getattr(tensor, name)(*others)
