"""New tensors: copies of the bytes in other memory, zeros, undefined bytes."""

import math

import torch

from narrowcast.operators.common import bound, refuse
from narrowcast.operators.views import alias
from narrowcast.tensor import LOGICAL_DTYPES, QuantizedTensor, unaligned
from narrowcast.tensor.dispatch import implements
from narrowcast.tensor.gathered import GatheredStore
from narrowcast.tensor.region import matrix_shape
from narrowcast.tensor.store_copies import zeros_like
from narrowcast.tensor.unaligned import UnalignedStore

aten = torch.ops.aten


def _wanted(values) -> tuple[torch.device, torch.dtype]:
    """The device and the dtype that a call asks for, else the tensor's own."""
    tensor = values["self"]
    return values["device"] or tensor.device, values["dtype"] or tensor.dtype


def _is_vector(size: tuple[int, ...]) -> bool:
    """As spectral norms ask for beside a weight; an empty one FSDP2 asks for, in its place."""
    return len(size) < 2 and math.prod(size) > 0


@implements(aten.new_zeros.default, aten.zeros_like.default)
def _zeros(func, args, kwargs):
    """zeros_like in the format, as torch stages frozen weights for an asynchronous save. Of a
    gathered weight a plain tensor, as its gradient is.
    """
    values = bound(func, args, kwargs)
    tensor, (device, dtype) = values["self"], _wanted(values)
    size, is_like = tuple(values.get("size", tensor.shape)), "size" not in values
    has_no_bytes = isinstance(tensor._store, GatheredStore) or tensor._view.place is not None
    is_plain = has_no_bytes if is_like else _is_vector(size)
    if dtype not in LOGICAL_DTYPES or is_plain:
        return torch.zeros(size, dtype=dtype, device=device)
    return QuantizedTensor(zeros_like(tensor._store, *matrix_shape(size), device), size, dtype)


@implements(aten.new_empty.default, aten.empty_like.default)
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


@implements(aten.clone.default)
def _clone(func, args, kwargs):
    return args[0].with_store(args[0]._view.own_store())


@implements(aten._to_copy.default)
def _to_copy(func, args, kwargs):
    values = bound(func, args, kwargs)
    tensor, (device, dtype) = values["self"], _wanted(values)
    if dtype not in LOGICAL_DTYPES:
        return refuse(tensor, func, f"to {dtype} is not possible: use dequantize(), then that")
    is_read = tensor._view.place is not None  # it cannot be written to
    if device == tensor.device and (is_read or _is_autocast(device.type)):
        return alias(tensor, dtype)
    if device == tensor.device or tensor._store.is_traced:
        return tensor.with_store(tensor._view.own_store(device), dtype)

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


@implements(aten._pin_memory.default)
def _pin_memory(func, args, kwargs):
    return args[0].with_store(args[0]._view.own_store().map(torch.Tensor.pin_memory))
