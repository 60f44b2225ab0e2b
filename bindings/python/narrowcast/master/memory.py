"""Functions that look at a weight's memory, which is its value's, and those that put another value
in its place: `weight.data = value`, with which nn.Module converts, too.
"""

import torch
from torch.autograd.graph import increment_version

from narrowcast.master.weight import (
    MasterWeight,
    handles,
    like,
    mapped,
    rounded,
    value_of,
    wrong_dtype,
)
from narrowcast.tensor import by_data, dispatch

Tensor = torch.Tensor


@handles(Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.__dlpack__)
def _as_numbers(func, args, kwargs):
    """These look at memory, of which a wrapper has none."""
    return func(*mapped(rounded, args), **mapped(rounded, kwargs))


@handles(Tensor.is_shared)
def _of_memory(func, args, kwargs):
    return func(*mapped(value_of, args), **mapped(value_of, kwargs))


@handles(Tensor.apply_, Tensor.map_, Tensor.map2_, Tensor.share_memory_)
def _on_memory(func, args, kwargs):
    """These change it, and torch counts that for nobody."""
    _of_memory(func, args, kwargs)
    increment_version([mapped(value_of, args[0])])
    return args[0]


@handles(Tensor.data.__set__)
def _set_data(func, args, kwargs):
    """That memory from now on, or float32 of it, with bytes of its own."""
    weight, data = args
    if isinstance(weight, MasterWeight) and not isinstance(data, MasterWeight):
        data = like(weight, data.detach())
    by_data.note_taken(data)
    dispatch.as_torch_does(func, (weight, data), kwargs)
    if isinstance(weight, MasterWeight):
        weight._take_over(data)


@handles(torch._has_compatible_shallow_copy_type)
def _is_by_data(func, args, kwargs):
    """nn.Module asks this before it puts a converted tensor in a parameter's place. TypeError if
    that would no longer be a weight.
    """
    weight, converted = args
    if isinstance(weight, MasterWeight):
        if not isinstance(converted, MasterWeight):
            raise wrong_dtype(weight.cell.config, converted.dtype)
        if by_data.is_given(weight, converted):
            return True
    return dispatch.as_torch_does(func, args, kwargs)
