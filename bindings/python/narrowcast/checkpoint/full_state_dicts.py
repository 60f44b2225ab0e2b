"""Full state dicts of weights without masters, which are their bytes. Where one rank gives all
others (broadcast_from_rank0), torch sends plain tensors of a shape and a dtype.
"""

import functools

import torch
import torch.distributed as dist
from torch.distributed import _state_dict_utils

from narrowcast.tensor import QuantizedTensor, dtensors


def with_bytes(broadcast):
    """torch's function, which sends some keys of a state dict that the first rank has, and gives
    each rank its part of what it receives. All ranks see which of their own values are bytes, and
    for these alone ask what will be sent.
    """

    @functools.wraps(broadcast)
    def send(full_state_dict, local_state_dict, keys, device, pg=None):
        full_state_dict = dict(full_state_dict)
        for key in keys:
            value, target = full_state_dict[key], local_state_dict.get(key)
            if isinstance(dtensors.local_of(target), QuantizedTensor):
                whole = _bytes_of_first(value, device, pg)
                if whole is not None:
                    is_sharded = isinstance(target, dtensors.DTensor)
                    local_state_dict[key] = (target, whole) if is_sharded else whole
                    _state_dict_utils._distribute_tensors(local_state_dict, [key], device, pg)
                    continue
            elif isinstance(value, QuantizedTensor):
                full_state_dict[key] = value.dequantize(value.dtype)
            broadcast(full_state_dict, local_state_dict, [key], device, pg)

    return send


def _bytes_of_first(value, device, pg) -> QuantizedTensor | None:
    """The first rank's weight, on all ranks; None if it sends plain values."""
    forms = [value.detach().to("meta") if isinstance(value, QuantizedTensor) else None]
    dist.broadcast_object_list(forms, src=0, group=pg)
    if forms[0] is None:
        return None
    possible = (pg or dist.group.WORLD)._device_types  # where the group can send
    there = device if device.type in {one.type for one in possible} else possible[0]
    is_first = dist.get_rank() == 0
    mine = value.detach().to(there) if is_first else torch.empty_like(forms[0], device=there)
    with torch.no_grad():
        dist.broadcast(mine, src=0, group=pg)
    return mine.to(device)
