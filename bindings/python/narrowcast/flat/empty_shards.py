"""Weights with fewer rows than ranks: a rank without rows does not know what a load has written to
the others' shards, so for these weights the ranks compare that before every gather of a forward.
"""

from __future__ import annotations

import torch

from narrowcast import _C
from narrowcast.flat import stale
from narrowcast.ranks import Reduction
from narrowcast.tensor import buffers, dtensors
from narrowcast.tensor.store import Store

Weights = list[tuple[torch.Tensor, Store]]  # sharded parameters, each with its store


def _with_any(weights: Weights) -> set[Store]:
    """Of some weights those that leave a rank without rows, whose scale spans the tensor or that
    share blocks; and what shares a scale with one.
    """
    own = {
        store
        for parameter, store in weights
        if store.needs_others and store.bytes.is_plain and dtensors.leaves_any_empty(parameter)
    }
    groups = {store.config.scale_group for store in own} - {None}
    return own | {store for _, store in weights if store.config.scale_group in groups}


def without_any(weights: Weights) -> list[tuple[Store, stale.Group]]:
    """Those of which each rank knows by itself what was written, as stale.cast() takes them."""
    left = _with_any(weights)
    return [(store, dtensors.shard_group(one)) for one, store in weights if store not in left]


def cast_all(weights: Weights) -> None:
    """Makes the bytes of those weights that were written, on this rank or on any. Collective."""
    stale.cast(without_any(weights))
    EmptyShards(weights).update()


class EmptyShards:
    """Of some weights: those that leave a rank without rows."""

    def __init__(self, weights: Weights):
        own = _with_any(weights)
        shards = [(store, dtensors.shard_group(one)) for one, store in weights if store in own]
        self._casts = stale.casts_by_group(one for one in shards if one[0].master is not None)
        frozen: dict = {}
        for store, group in shards:
            if store.master is None and store.format.tensor_amax:
                frozen.setdefault(group, []).append(store)
        self._scales = [_Scales(stores, group) for group, stores in frozen.items()]
        self.is_needed = bool(self._casts or self._scales)

    def update(self) -> None:
        """Collective: what the ranks with rows have written, those without take over."""
        for one in (*self._casts, *self._scales):
            one.run()


class _Scales:
    """What spans frozen weights, which have no masters to cast from: the maxima of its bytes."""

    def __init__(self, stores: list[Store], group):
        self._spanning = [
            (one, store.used == 0)
            for store in stores
            for one in buffers.spanning_of(store.bytes)
            if one is not None
        ]
        sizes = [one.nbytes for one, _ in self._spanning]
        words = torch.zeros(sum(sizes), dtype=torch.int32, device=stores[0].bytes.device)
        self._reduction = Reduction(words, group)
        self._words = self._reduction.words.split(sizes)

    def run(self) -> None:
        self._reduction.begin()
        for (one, is_empty), words in zip(self._spanning, self._words, strict=True):
            if not is_empty:
                words.copy_(one.view(-1).view(torch.uint8))
        self._reduction.reduce()
        _C.note_write()
        for (one, is_empty), words in zip(self._spanning, self._words, strict=True):
            if is_empty:
                # A graph that has saved it for its backward shall have the present one.
                with torch.autograd._unsafe_preserve_version_counter(one):
                    one.view(-1).view(torch.uint8).copy_(words)
