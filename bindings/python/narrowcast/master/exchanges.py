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
    if isinstance(data, _ByData):
        dispatch.become(data, MasterWeight)
    dispatch.as_torch_does(func, (weight, data), kwargs)
    if isinstance(weight, MasterWeight):
        weight._take_over(data)


@handles(torch._has_compatible_shallow_copy_type)
def _is_by_data(func, args, kwargs):
    """nn.Module asks this before it puts a converted tensor in a parameter's place. TypeError if
    that would no longer be a weight.
    """
    weight, converted = args
    if isinstance(weight, MasterWeight) and not isinstance(converted, MasterWeight):
        raise wrong_dtype(weight.cell.config, converted.dtype)
    others = torch.__future__  # ways to put a converted tensor in a parameter's place
    is_by_data = not (
        others.get_swap_module_params_on_conversion()
        or others.get_overwrite_module_params_on_conversion()
    )
    moves = converted.is_meta or weight.is_meta  # for which torch makes a parameter anew
    if is_by_data and isinstance(weight, MasterWeight) and not moves:
        dispatch.become(converted, _ByData)
        return True
    return dispatch.as_torch_does(func, args, kwargs)


class _ByData(MasterWeight):
    """What nn.Module gives to a parameter as it does with plain ones: by `.data`, with which the
    parameter keeps its hooks and may have weak references. Tensors that can be taken apart it swaps
    instead, so for that moment this one cannot.
    """

    @property
    def __tensor_flatten__(self):
        raise AttributeError
