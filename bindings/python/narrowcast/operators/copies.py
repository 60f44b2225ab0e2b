"""New tensors: copies of the bytes in other memory, zeros, undefined bytes."""

import torch

from narrowcast.operators.common import bound, refuse
from narrowcast.operators.views import alias
from narrowcast.tensor import LOGICAL_DTYPES, QuantizedTensor, buffers, unaligned
from narrowcast.tensor.dispatch import implements
from narrowcast.tensor.gathered import GatheredStore
from narrowcast.tensor.region import matrix_shape
from narrowcast.tensor.unaligned import UnalignedStore

aten = torch.ops.aten


def _wanted(values) -> tuple[torch.device, torch.dtype]:
    """The device and the dtype that a call asks for, else the tensor's own."""
    tensor = values["self"]
    return values["device"] or tensor.device, values["dtype"] or tensor.dtype


@implements(aten.new_zeros.default, aten.zeros_like.default)
def _zeros(func, args, kwargs):
    """zeros_like in the format, as torch stages frozen weights for an asynchronous save. Of a
    gathered weight a plain tensor, as its gradient is; new_zeros is always plain.
    """
    values = bound(func, args, kwargs)
    tensor, (device, dtype) = values["self"], _wanted(values)
    view, size = tensor._view, values.get("size", tensor.shape)
    has_no_bytes = isinstance(view.store, GatheredStore) or view.place is not None
    if dtype not in LOGICAL_DTYPES or has_no_bytes or "size" in values:
        return torch.zeros(size, dtype=dtype, device=device)
    zeros = _new_empty(tensor, device, dtype)
    buffers.fill_with_zeros(zeros._store.bytes)
    if view.store.partial:  # zeros are zeros under the whole tensor's scale
        buffers.copy_spanning(zeros._store.bytes, view.store.bytes)
    return zeros


@implements(aten.new_empty.default, aten.empty_like.default)
def _empty(func, args, kwargs):
    values = bound(func, args, kwargs)
    tensor, (device, dtype) = values["self"], _wanted(values)
    size = tuple(values.get("size", tensor.shape))
    if dtype not in LOGICAL_DTYPES or size != tensor.shape:
        return torch.empty(size, dtype=dtype, device=device)
    return _new_empty(tensor, device, dtype)


def _new_empty(tensor: QuantizedTensor, device, dtype: torch.dtype) -> QuantizedTensor:
    """Undefined bytes of a tensor's shape, format, usages and options."""
    store, view = tensor._store, tensor._view
    if isinstance(store, UnalignedStore):
        return tensor.with_store(unaligned.new_empty(store, store.shard, device), dtype)
    size = view.region.shape if tensor.is_flat else matrix_shape(tensor.shape)
    return tensor.with_store(store.new_empty(*size, view.usages, device), dtype)


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
