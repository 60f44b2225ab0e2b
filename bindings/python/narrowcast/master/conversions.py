"""What nn.Module gives to a parameter as it converts it: by `.data`, as to a plain one, with which
the parameter keeps its hooks (DistributedDataParallel's, Megatron's) and may have weak references.
"""

import torch

from narrowcast.master.weight import MasterWeight, handles
from narrowcast.tensor import dispatch


class _ByData(MasterWeight):
    """Tensors that can be taken apart nn.Module swaps, so for that moment this one cannot. The
    assignment makes a MasterWeight of it again.
    """

    @property
    def __tensor_flatten__(self):
        raise AttributeError


@handles(torch._has_compatible_shallow_copy_type)
def _replace(func, args, kwargs):
    """nn.Module asks this before it puts a converted tensor in a parameter's place."""
    weight, converted = args
    others = torch.__future__  # ways to put it there
    is_by_data = not (
        others.get_swap_module_params_on_conversion()
        or others.get_overwrite_module_params_on_conversion()
    )
    are_weights = all(isinstance(one, MasterWeight) for one in args)
    is_on_device = weight.device == converted.device and not weight.is_meta
    if is_by_data and are_weights and is_on_device:
        converted.__class__ = _ByData
        return True
    return dispatch.as_torch_does(func, args, kwargs)
