"""Full state dicts of weights without masters, which are their bytes. torch sends plain tensors of
a shape and a dtype where one rank gives all others (broadcast_from_rank0), and cuts what each rank
has as tensors are cut, which blocks are not.
"""

import functools

import torch
import torch.distributed as dist
from torch.distributed import _state_dict_utils

from narrowcast.checkpoint import state_dicts
from narrowcast.fsdp import sharding
from narrowcast.tensor import QuantizedTensor, dtensors, unaligned
from narrowcast.tensor.store import Store


def with_bytes(broadcast):
    """torch's function, which sends some keys of a state dict that the first rank has, and gives
    each rank its part of what it receives. All ranks see which of their own values are bytes, and
    for these alone ask what will be sent.
    """

    @functools.wraps(broadcast)
    def send(full_state_dict, local_state_dict, keys, device, pg=None):
        received = dict(full_state_dict)
        for key in keys:
            value = received[key] if dist.get_rank() == 0 else None
            if key.endswith(state_dicts.HISTORY):
                local_state_dict.setdefault(key, torch.empty(0))  # torch gives what is asked for
            target = local_state_dict.get(key)
            is_quantized = isinstance(dtensors.local_of(target), QuantizedTensor)
            sent = _bytes_of_first(value, device, pg) if is_quantized else None
            if sent is not None:
                _give_part(sent, local_state_dict, key, device, pg)
                continue
            if isinstance(value, QuantizedTensor):
                received[key] = value.dequantize(value.dtype)
            broadcast(received, local_state_dict, [key], device, pg)

    return send


def _bytes_of_first(value, device, pg) -> QuantizedTensor | None:
    """The first rank's weight, on all ranks; None if it sends plain values."""
    forms = [value.detach().to("meta") if isinstance(value, QuantizedTensor) else None]
    dist.broadcast_object_list(forms, src=0, group=pg)
    if forms[0] is None:
        return None
    possible = (pg or dist.group.WORLD)._device_types  # where the group can send
    there = device if device.type in {one.type for one in possible} else possible[0]
    mine = torch.empty_like(forms[0], device=there) if value is None else value.detach().to(there)
    with torch.no_grad():
        dist.broadcast(mine, src=0, group=pg)
    return mine


def _give_part(sent: QuantizedTensor, local_state_dict, key: str, device, pg) -> None:
    """Each rank's part of a weight that was received."""
    whole, target = sent.to(device), local_state_dict[key]
    is_sharded = isinstance(target, dtensors.DTensor)
    own = _own_rows(key, whole, target.device_mesh, target.placements) if is_sharded else None
    if own is not None:
        target.to_local().copy_(own)
        return
    local_state_dict[key] = (target, whole) if is_sharded else whole
    _state_dict_utils._distribute_tensors(local_state_dict, [key], device, pg)


def _own_rows(name: str, whole: QuantizedTensor, mesh, placements) -> QuantizedTensor | None:
    """This rank's shard of a weight, where cuts divide blocks or leave ranks without rows; else
    None. ValueError, on all ranks, where several dimensions of a mesh cut it, within blocks.
    """
    _check_parts(name, whole._store, mesh, placements)
    shard = sharding.unaligned_shard_over(whole, mesh, placements)
    if shard is None:
        return _own_slice(whole, mesh, placements)
    store = unaligned.new_shard(whole._store, shard)
    return QuantizedTensor(store, (shard.own_rows, *whole.shape[1:]), whole.dtype)


def _check_parts(name: str, store: Store, mesh, placements) -> None:
    cuts = dtensors.cuts_over(mesh, placements)
    rows, step = store.rows, store.format.shard_row_step
    for cut in (cut for cut in cuts if placements[cut].dim == 0):
        rows = -(-rows // mesh.size(cut))
    if len(cuts) > 1 and rows < store.rows and rows % step != 0:
        raise ValueError(
            f"{name}: a mesh of {len(cuts)} dimensions cuts it into shards of {rows} rows, within "
            f"blocks of {step} rows of {store.format.name}, and it keeps no master: its bytes in a "
            "full state dict cannot be loaded. Load the state dict of a model that is sharded in "
            "the same way, or plain values before nc.convert, or keep masters "
            "(nc.convert(..., trainable=True))"
        )


def _own_slice(whole: QuantizedTensor, mesh, placements) -> QuantizedTensor | None:
    dim = sharding.cut_of_rows(mesh, placements)
    if dim is None or not dtensors.leaves_empty(whole.shape[0], mesh.size(dim)):
        return None
    (count, *_), (first, *_) = dtensors.box_over(whole.shape, mesh, placements)
    return whole[first : first + count]


def with_cuts(distribute):
    """torch's function, where every rank has the whole."""

    @functools.wraps(distribute)
    def give(tensor, device_mesh, placements):
        own = None
        if isinstance(tensor, QuantizedTensor):
            name = tensor._store.config.name or "a weight"
            own = _own_rows(name, tensor, device_mesh, placements)
        if own is None:
            return distribute(tensor, device_mesh, placements)
        sizes = {"shape": tensor.shape, "stride": tensor.stride()}
        return dtensors.DTensor.from_local(own, device_mesh, placements, run_check=False, **sizes)

    return give
