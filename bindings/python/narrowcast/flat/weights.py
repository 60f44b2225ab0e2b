"""Weights whose flat shards were handed in: the buffers that they have now, for Module.to and
others give them new ones, and their columnwise bytes while rowwise ones are on their way.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import torch

from narrowcast import _C
from narrowcast.flat import shards
from narrowcast.tensor import QuantizedTensor
from narrowcast.tensor.store import PendingColumnwise, Store


class Weights:
    """In the order of the list. `what`: they are, in messages. No weak references: torch swaps no
    tensor that has one, and Module.to swaps.
    """

    def __init__(self, what: str, weights: Sequence[torch.Tensor]):
        self._what, self._weights = what, [*weights]
        self._stores = self.present()
        self._kinds = [*map(shards.kind, self._stores)]

    def present(self) -> list[Store]:
        return [weight._store for weight in self._weights]

    def stores(self) -> list[Store]:
        """Present ones. TypeError or ValueError if one cannot take the place of the first."""
        now = self.present()
        for place, (store, known) in enumerate(zip(now, self._stores, strict=True)):
            if store is not known:
                self._check(place, store)
        self._stores = now
        return now

    def note_writes(self) -> None:
        note_writes(self._weights)

    def _check(self, place: int, store: Store) -> None:
        what, kind = f"weight {place} of {self._what}", self._kinds[place]
        shards.store_without_master(what, self._weights[place])
        if shards.kind(store) != kind:
            raise ValueError(
                f"{what} was {kind}, and is {shards.kind(store)} now: hand it in anew, on all ranks"
            )


def note_writes(weights: Iterable[torch.Tensor]) -> None:
    """Weights have got other bytes: a backward that has saved one refuses to read it."""
    torch.autograd.graph.increment_version([one for one in weights if not one.is_inference()])


def invalidate_columnwise(store: Store, manual: bool) -> None:
    """Takes the columnwise bytes away, if the format derives them from rowwise ones, but not their
    memory: other ranks' rowwise bytes are not there yet. `manual`: post_all_gather_processing alone
    makes them again, not their first reader.
    """
    if not store.format.columnwise_derived or not store.bytes.has("columnwise"):
        if store.pending is not None:
            store.pending = PendingColumnwise(store.pending.bytes, manual)
        return
    rowwise = store.bytes.buffers[:2]
    both, spanning = store.bytes, (store.bytes.amax, store.bytes.history)
    store.bytes = _C.Buffers(
        store.format, store.rows, store.columns, (*rowwise, None, None), *spanning
    )
    store.pending = PendingColumnwise(both, manual)
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
