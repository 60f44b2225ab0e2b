"""What fully_shard cuts into shards."""

from __future__ import annotations

from narrowcast.tensor import QuantizedTensor, buffers
from narrowcast.tensor.store import Store


def begin(store: Store, shards: int) -> None:
    """Shards are copied from the store, and learn from it that they are parts: one may have all of
    its rows, and others none.
    """
    store.refresh()  # all shards begin with bytes of one amax
    store.is_cut = True
    store.partial = store.partial or shards > 1


def without_derived(tensor: QuantizedTensor) -> QuantizedTensor:
    """The same value in the usages that its shards keep, over the same memory: bytes that no shard
    has limit no cut.
    """
    store, view = tensor._store, tensor._view
    usages = buffers.kept_usages(store.format, store.bytes.usages)
    if view.exchanged or usages == store.bytes.usages:
        return tensor
    kept = Store(buffers.only(store.bytes, *usages), store.master, store.label)
    kept.partial, kept.used, kept.is_cut = store.partial, store.used, store.is_cut
    return QuantizedTensor(kept, tensor.shape, tensor.dtype, view.region)
