"""Copies and new tensors: the bytes as they are in other memory, or zeros."""

import math

import torch

from narrowcast import _C, stack_frames
from narrowcast.fsdp import sharding
from narrowcast.operators import arithmetic, averages, table
from narrowcast.operators.common import bound, refuse, value_of
from narrowcast.operators.views import alias
from narrowcast.tensor import LOGICAL_DTYPES, QuantizedTensor, buffers, memory, unaligned
from narrowcast.tensor.dispatch import implements
from narrowcast.tensor.region import Region, matrix_shape
from narrowcast.tensor.serialize import flattened
from narrowcast.tensor.store import Store
from narrowcast.tensor.store_copies import copy_region, write, zeros_like
from narrowcast.tensor.transposed import Transposed
from narrowcast.tensor.unaligned import UnalignedStore
from narrowcast.tensor.view import View


def _wanted(values) -> tuple[torch.device, torch.dtype]:
    """The device and the dtype that a call asks for, else the tensor's own."""
    tensor = values["self"]
    return values["device"] or tensor.device, values["dtype"] or tensor.dtype


def _is_vector(size: tuple[int, ...]) -> bool:
    """As spectral norms ask for beside a weight; an empty one FSDP2 asks for, in its place."""
    return len(size) < 2 and math.prod(size) > 0


@implements(*table.NEW_ZEROS.operators)
def _new_zeros(func, args, kwargs):
    values = bound(func, args, kwargs)
    tensor, size = values["self"], tuple(values["size"])
    device, dtype = _wanted(values)
    if dtype not in LOGICAL_DTYPES or _is_vector(size):
        return torch.zeros(size, dtype=dtype, device=device)
    return QuantizedTensor(zeros_like(tensor._store, *matrix_shape(size), device), size, dtype)


@implements(*table.NEW_EMPTY.operators)
def _empty(func, args, kwargs):
    values = bound(func, args, kwargs)
    tensor, (device, dtype) = values["self"], _wanted(values)
    size = tuple(values.get("size", tensor.shape))
    if dtype not in LOGICAL_DTYPES or ("size" in values and _is_vector(size)):
        return torch.empty(size, dtype=dtype, device=device)
    if isinstance(tensor._store, UnalignedStore) and size == tuple(tensor.shape):
        shard = unaligned.new_empty(tensor._store, tensor._store.shard, device)
        return QuantizedTensor(shard, size, dtype)
    rows, columns = matrix_shape(size)
    if tensor.is_flat and "size" not in values:
        rows, columns = tensor._view.region.shape
    elif math.prod(size) == 0:  # FSDP2 asks for new_empty(0), which no packed format could hold
        rows, columns = 0, tensor._store.columns
    return QuantizedTensor(
        tensor._store.new_empty(rows, columns, tensor._view.usages, device), size, dtype
    )


@implements(*table.PLAIN_LIKE.operators)
def _plain_like(func, args, kwargs):
    """Plain tensors, as gradients and moments; but not what torch stages for asynchronous saves."""
    tensor, *rest = args
    if stack_frames.is_running("torch.distributed._state_dict_utils", "_create_cpu_state_dict"):
        return tensor.with_store(tensor._view.own_store().map(torch.Tensor.cpu))
    like = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
    return func(like, *rest, **{**kwargs, "device": kwargs.get("device") or tensor.device})


@implements(*table.CLONE.operators)
def _clone(func, args, kwargs):
    return args[0].with_store(args[0]._view.own_store())


@implements(*table.TO.operators)
def _to_copy(func, args, kwargs):
    values = bound(func, args, kwargs)
    tensor, (device, dtype) = values["self"], _wanted(values)
    if dtype not in LOGICAL_DTYPES:
        return refuse(tensor, func, f"to {dtype} is not possible: use dequantize(), then that")
    is_read = isinstance(tensor, Transposed)  # which nobody can write to
    if device == tensor.device and (is_read or _is_autocast(device.type)):
        return alias(tensor, dtype)
    if device == tensor.device:
        return tensor.with_store(tensor._view.own_store(), dtype)

    def move(buffer):
        return buffer.to(device, non_blocking=values["non_blocking"])

    store = tensor._store if tensor._view.is_whole else tensor._view.own_store()
    return tensor.with_store(store.map(move), dtype)


def _is_autocast(device: str) -> bool:
    """Whether autocast calls, for a product: it leaves itself out then."""
    if device == "meta" or not torch.is_autocast_enabled(device):
        return False
    key = getattr(torch._C.DispatchKey, f"Autocast{device.upper()}")
    return torch._C._dispatch_tls_is_dispatch_key_excluded(key)


@implements(*table.PIN.operators)
def _pin_memory(func, args, kwargs):
    return args[0].with_store(args[0]._view.own_store().map(torch.Tensor.pin_memory))


@implements(*table.COPY.operators)
def _copy(func, args, kwargs):
    target, source = args[:2]
    is_quantized, brings = (isinstance(one, QuantizedTensor) for one in (target, source))
    both = is_quantized and brings
    # As matrices too: flat views forget theirs.
    alike = both and target.shape == source.shape and flattened(target) == flattened(source)
    if alike and target._view.is_same(source._view):
        return target  # set_state_dict, after a load into the weight's own state dict
    if alike and target.format is source.format:
        _copy_bytes(target, source)
        return target
    if brings:
        source = value_of(source, torch.float32, arithmetic.reads_masters(target, source))
    if not is_quantized:
        return target.copy_(source, *args[2:])
    _write(target, source)
    return target


def _copy_bytes(target: QuantizedTensor, source: QuantizedTensor) -> None:
    """Between tensors of one format and shape. ValueError if the source lacks a usage."""
    if _is_shard(source._view, target._view):
        _make_shard(target, source._view)
        return
    store, region = target._store, target._view.region
    origin, taken = source._view.placed(target._view.exchanged)
    is_shared = store.master is not None and store.master.is_shared
    if store.master is None or (is_shared and not origin.needs_others):
        origin.refresh()  # a stale source would bring bytes that nobody could make good
    missing = set(store.bytes.usages) - set(origin.bytes.usages)
    if _lie_apart(store, origin) or _would_change_others(store, region, origin, taken):
        write(store, region, origin.high_precision(taken))
    elif missing and origin.master is not None:
        write(store, region, taken.slice(origin.master.value))
    elif missing == {"columnwise"} and store.format.columnwise_derived:
        rowwise = buffers.part(origin.bytes, taken, ("rowwise",))
        derived = Store(_C.with_columnwise(rowwise))
        derived.partial, derived.used = origin.partial or taken != origin.region, origin.used
        copy_region(store, region, derived, derived.region)
    elif missing:
        raise ValueError(
            f"{target.describe()}: copy_ from a tensor without {' and '.join(sorted(missing))} "
            "bytes, which do not follow from those it has. Quantize the source with both usages, "
            "or copy a plain tensor"
        )
    else:
        copy_region(store, region, origin, taken)


def _is_shard(source: View, target: View) -> bool:
    """Whether fully_shard fills a blank with a shard that shares blocks with others."""
    return unaligned.is_blank(target.store) and source.store is not target.store


def _make_shard(target: QuantizedTensor, source: View) -> None:
    """Has a part of a blank, and the blank itself, look at a shard with what that shares."""
    if isinstance(source.store, UnalignedStore):
        shard = source.store.map(lambda tensor: tensor.to(target.device, copy=True))
        shard.shard_template = None
    else:
        shard = unaligned.new_shard_at(source.store, source.region.row)
    target.replace_store(shard)


def _lie_apart(store: Store, origin: Store) -> bool:
    """Whether two stores have the bytes of other blocks of their wholes."""
    return unaligned.shard_of(store) != unaligned.shard_of(origin)


def _would_change_others(store: Store, region: Region, origin: Store, taken: Region) -> bool:
    """Whether bytes under another scale of the tensor would change what lies beside them: in the
    same matrix, or in other ranks' shards.
    """
    if _is_used_beside(store, region):
        return store.master is not None or not buffers.have_one_scale(store.bytes, origin.bytes)
    return _brings_own_scale(store, origin, taken)


def _is_used_beside(store: Store, region: Region) -> bool:
    """Whether a scale of the whole tensor belongs to more rows and columns than a region."""
    rest = region.row > 0 or region.row_end < store.used or region.columns < store.columns
    return store.format.tensor_amax and rest and not region.is_empty


def _brings_own_scale(store: Store, origin: Store, taken: Region) -> bool:
    """Whether a shard would get bytes under a scale that other ranks' shards have not: those of
    what is no part of a weight, as a checkpoint's are.
    """
    spans = store.partial and store.format.tensor_amax
    if not spans or origin.partial or taken != origin.region or taken.is_empty:
        return False
    if buffers.have_one_scale(store.bytes, origin.bytes):
        return False
    return not sharding.has_all_rows(store)


def _write(target: QuantizedTensor, value: torch.Tensor) -> None:
    if value.layout != torch.strided:
        value = value.to_dense()
    if value.is_meta and not target.is_meta:
        raise ValueError(
            f"{target.describe()}: copy_ of a tensor on the meta device, which has no value. Give "
            "it one first (to_empty and an initialisation, or a load)"
        )
    if memory.has_values(value) and (problem := memory.problem_with(value)):
        raise ValueError(f"{target.describe()}: copy_ of a tensor that {problem}")
    value = value.to(target.device)
    try:
        value = value.expand(target.shape)
    except RuntimeError:
        raise ValueError(
            f"{target.describe()}: copy_ of a tensor of shape {tuple(value.shape)} into one of "
            f"shape {tuple(target.shape)}: the shapes must be equal, or broadcast to the target's"
        ) from None
    value = value if value.dtype in LOGICAL_DTYPES else value.to(torch.float32)
    if averages.is_averaging():
        averages.write(target, value)
    else:
        target.write(value)
