"""Weights that were handed in once: what they have now, for Module.to and others give them other
bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from narrowcast.flat import shards
from narrowcast.tensor.store import Store


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
