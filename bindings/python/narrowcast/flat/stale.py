"""Casts of shards that were written, where a cast needs what other ranks have: the amax of a
tensor, or blocks that cuts divide. All that are stale are cast together, with one reduction for
each process group: before the next gather of a forward, or the next step.

Which shards are stale each rank knows by itself: every rank runs the same program. The exception is
a rank whose shard has no rows, where a load writes nothing: its casts wait for the others'
verdicts.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist

from narrowcast import _C
from narrowcast.flat.exchange import Exchange, Part
from narrowcast.flat.shards import Shard
from narrowcast.ranks import Reduction
from narrowcast.tensor import casting, unaligned
from narrowcast.tensor.store import Store
from narrowcast.tensor.unaligned import UnalignedStore

Group = dist.ProcessGroup | None

# Verdicts: a cast leaves a matrix alone whose verdict is negative. As int32 words the first is the
# smaller one, so their maximum over ranks says whether any rank has written.
_LEAVE, _CAST = -1.0, 0.0
_NEAREST = 0, 0, 0  # a draw that no launch reads


def cast(shards: Iterable[tuple[Store, Group]]) -> None:
    """Makes the bytes of stale matrices from their masters. Each comes with the process group whose
    ranks have the other shards of its tensor. Collective if a cast needs those; no host waits.
    """
    stale = [(store, group) for store, group in shards if store.is_stale]
    casting.cast_masters([store for store, _ in stale if not _waits(store)])
    for casts in together((store, group) for store, group in stale if _waits(store)):
        casts.run()


def together(shards: Iterable[tuple[Store, Group]]) -> list[ShardCasts]:
    """Casts of shards that wait for others, one for each process group and, where ranks share
    blocks, for each part of tensor parallelism.
    """
    alike: dict[tuple, list[Store]] = {}
    for store, group in shards:
        shard = unaligned.shard_of(store)
        part = shard and (shard.part, shard.parts)
        alike.setdefault((group, part), []).append(store)
    return [ShardCasts(stores, group) for (group, _), stores in alike.items()]


def _waits(store: Store) -> bool:
    """Whether a cast needs what others have; one on meta makes nothing."""
    return store.needs_others and store.bytes.is_plain


class ShardCasts:
    """Casts of shards with masters, on one device. One reduction: a verdict for each shard, amaxes
    of tensors, and what cuts divide.
    """

    @torch.inference_mode(False)  # later casts may be outside of it
    def __init__(self, stores: list[Store], group: Group):
        ordered = sorted(stores, key=_format_name)
        whole = [one for one in ordered if not isinstance(one, UnalignedStore)]
        sharing = [one for one in ordered if isinstance(one, UnalignedStore)]
        self._stores = [*whole, *sharing]
        verdicts = torch.full((len(stores),), _LEAVE, dtype=torch.float32, device="cpu")
        identity = torch.cat(
            [verdicts.view(torch.int32), torch.zeros(len(whole), dtype=torch.int32)]
        )
        if sharing:
            shards = [*map(shard_of, sharing)]
            ranges = ranges_of(sharing)
            self._reduction = Exchange(shards, ranges, group, identity, reduces_extra=True)
        else:
            self._reduction = Reduction(identity.to(stores[0].bytes.device), group)
        floats = self._reduction.floats
        self._verdicts, amaxes = floats[: len(stores)], floats[len(stores) :]
        self._batches: list[_Whole | _Sharing] = []
        for format in dict.fromkeys(store.format for store in whole):
            some = [store for store in whole if store.format is format]
            first = whole.index(some[0])
            part = slice(first, first + len(some))
            self._batches.append(_Whole(some, self._verdicts[part], amaxes[part]))
        for part in self._reduction.parts if sharing else ():
            some = [sharing[place] for place in part.places]
            first = len(whole) + part.places[0]
            verdicts = self._verdicts[first : first + len(some)]
            self._batches.append(_Sharing(some, verdicts, part, floats))
        self._has_empty = any(store.rows == 0 for store in stores)

    def run(self) -> None:
        """Makes the bytes of the shards that are stale, on this rank or, of one without rows, on
        others. Those of a saved state that has not been written to since are made as they were, for
        which the host reads the verdicts.
        """
        stale = [store for store in self._stores if store.is_stale]
        takes_part = bool(stale) or self._has_empty
        self._reduction.begin()
        if stale:
            written = [_CAST if _is_written(store) else _LEAVE for store in self._stores]
            self._verdicts.copy_(torch.tensor(written, dtype=torch.float32, device="cpu"))
        for batch in self._batches if takes_part else ():
            batch.collect()
        self._reduction.reduce()
        for batch in self._batches if takes_part else ():
            batch.cast()
        if not all(map(_is_written, stale)):
            verdicts = iter(self._verdicts.tolist())
            for batch in self._batches:
                for place, store in enumerate(batch.stores):
                    if next(verdicts) == _LEAVE and store.is_stale:
                        batch.cast_again(place)
        for store in stale:
            store.master.mark_fresh()


def _format_name(store: Store) -> str:
    return store.format.name


def _is_written(store: Store) -> bool:
    """Whether new bytes are to be made, not those of a saved state."""
    return store.is_stale and store.master.saved is None


class _Whole:
    """Shards of one format that are matrices of their own."""

    def __init__(self, stores: list[Store], verdicts: torch.Tensor, amaxes: torch.Tensor):
        self.stores, self._verdicts, self._amaxes = stores, verdicts, amaxes
        self._casts = casting.casts_of(stores)

    def collect(self) -> None:
        self._casts.find_amaxes(into=self._amaxes)

    def cast(self) -> None:
        self._casts.cast(self._amaxes, verdict=self._verdicts)

    def cast_again(self, place: int) -> None:
        casting.cast_again(self.stores[place], self._amaxes[place : place + 1])


class _Sharing:
    """Shards of one format that share blocks with those of other ranks."""

    def __init__(
        self, stores: list[Store], verdicts: torch.Tensor, part: Part, words: torch.Tensor
    ):
        self.stores, self._verdicts, self._amaxes, self._words = (
            stores,
            verdicts,
            part.amaxes,
            words,
        )
        self._casts = _C.FlatCast(part.shards)

    def collect(self) -> None:
        values = [store.master.value.view(-1) if store.rows else None for store in self.stores]
        draws = [*map(_drawn, self.stores)]
        if all(draw is _NEAREST for draw in draws):
            draws = None
        self._casts.collect(values, self._amaxes, self._words, False, draws)

    def cast(self) -> None:
        self._finish(self._verdicts, False)

    def cast_again(self, place: int) -> None:
        verdicts = torch.full((len(self.stores),), _LEAVE, dtype=torch.float32, device="cpu")
        verdicts[place] = _CAST
        drawn = self.stores[place].master.saved.rng_key is not None
        self._finish(verdicts.to(self._verdicts.device), drawn)

    def _finish(self, verdicts: torch.Tensor, stochastic: bool) -> None:
        self._casts.finish(self._amaxes, self._words, False, stochastic, verdicts)


def shard_of(store: Store) -> Shard:
    """A shard that shares blocks, as one of the flattened whole."""
    if store.rows == 0:
        return Shard(store, 0, 0, None)
    return Shard(store, *store.shard.elements(store.columns), store.master.value.view(-1))


def ranges_of(stores: list[Store]) -> list[list[tuple[int, int]]]:
    """What each rank owns of each whole."""
    return [*map(list, zip(*(one.shard.ranges(one.columns) for one in stores), strict=True))]


def _drawn(store: Store) -> tuple[int, int, int]:
    saved = store.master.saved
    if not store.is_stale or saved is None or saved.rng_key is None:
        return _NEAREST
    return saved.rng_key.seed, saved.rng_key.step, store.shard.origin
