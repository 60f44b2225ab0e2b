"""Another value in a weight's place: `weight.data = value`, with which nn.Module converts, too."""

import torch

from narrowcast.master.weight import MasterWeight, handles, like, wrong_dtype
from narrowcast.tensor import dispatch


@handles(torch.Tensor.data.__set__)
def _set_data(func, args, kwargs):
    """That memory from now on, or float32 of it, with bytes of its own."""
    weight, data = args
    if isinstance(weight, MasterWeight) and not isinstance(data, MasterWeight):
        data = like(weight, data.detach())
    dispatch.taken_by_data(data)
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
        if dispatch.goes_by_data(weight, converted):
            return True
    return dispatch.as_torch_does(func, args, kwargs)
