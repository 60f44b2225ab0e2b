"""Columnwise bytes that follow from rowwise ones: after a cast of shards they are absent until the
shards of all ranks have come.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch

from narrowcast import _C
from narrowcast.tensor import QuantizedTensor
from narrowcast.tensor.store import PendingColumnwise, Store


def withhold(store: Store, by_hand: bool) -> None:
    """Takes the columnwise bytes away, if the format derives them, but not their memory. `by_hand`:
    they come with post_all_gather_processing alone, not with the first who reads them.
    """
    if not store.format.columnwise_derived or not store.bytes.has("columnwise"):
        if store.pending is not None:
            store.pending = PendingColumnwise(store.pending.bytes, by_hand)
        return
    rowwise = store.bytes.buffers[:2]
    both, spanning = store.bytes, (store.bytes.amax, store.bytes.history)
    store.bytes = _C.Buffers(
        store.format, store.rows, store.columns, (*rowwise, None, None), *spanning
    )
    store.pending = PendingColumnwise(both, by_hand)
    _C.note_change()


def post_all_gather_processing(weights: Iterable[torch.Tensor]) -> None:
    """Makes the columnwise bytes of weights whose rowwise bytes have just been gathered, after
    nc.quantize_master_weights: one launch for each format and device. Weights whose columnwise
    bytes are quantized from masters, or that keep rowwise bytes alone, stay as they are.

    TypeError if one is no QuantizedTensor.
    """
    together: dict[tuple, list[Store]] = defaultdict(list)
    if isinstance(weights, torch.Tensor):
        raise TypeError("post_all_gather_processing got a tensor: it takes a list of weights")
    for place, weight in enumerate(weights):
        if not isinstance(weight, QuantizedTensor):
            raise TypeError(
                f"weight {place} is a {type(weight).__name__}, not a QuantizedTensor: "
                "post_all_gather_processing takes the weights of quantize_master_weights"
            )
        store = weight._store
        if store.pending is not None:
            together[store.format, store.bytes.device].append(store)
    for stores in together.values():
        _C.derive_columnwise([store.pending.bytes for store in stores])
        for store in stores:
            store.bytes, store.pending = store.pending.bytes, None
    _C.note_change()
