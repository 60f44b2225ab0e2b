"""Shards that share blocks with others: where their rows lie, and how they are made."""

from __future__ import annotations

from typing import NamedTuple

import torch

from narrowcast import _C
from narrowcast.tensor import buffers, casting
from narrowcast.tensor.region import Region
from narrowcast.tensor.store import Store, WeightConfig


class UnalignedShard(NamedTuple):
    """The shard of a rank, of `shards` of `shard_rows` rows or fewer, in a matrix of `rows`. Its
    bytes are those of the blocks that hold its rows: of a matrix that begins and ends at multiples
    of `step`, the format's row step, or with the whole.

    The matrix may be a part of tensor parallelism: the one at `part` of those with the rows and
    columns `shapes`, all of which are cut into as many shards. `first` is the index of its first
    element in the weight, if parts are runs of elements.
    """

    rank: int
    shards: int
    shard_rows: int
    rows: int
    step: int
    part: int = 0
    shapes: tuple[tuple[int, int], ...] = ()
    first: int = 0

    @property
    def parts(self) -> int:
        return max(1, len(self.shapes))

    @property
    def row_begin(self) -> int:
        """The first of its own rows."""
        return min(self.rank * self.shard_rows, self.rows)

    @property
    def row_end(self) -> int:
        """The row behind the last of its own."""
        return min(self.row_begin + self.shard_rows, self.rows)

    @property
    def own_rows(self) -> int:
        return self.row_end - self.row_begin

    @property
    def stored_begin(self) -> int:
        """The first of the rows whose bytes it has. A shard without rows has the bytes of the first
        blocks, of which nothing is its own.
        """
        return self.row_begin // self.step * self.step if self.own_rows else 0

    @property
    def stored_rows(self) -> int:
        """The number of rows whose bytes it has."""
        end = self.row_end if self.own_rows else 1
        return min(-(-end // self.step) * self.step, self.rows) - self.stored_begin

    @property
    def rows_before(self) -> int:
        """The rows of other ranks before its own, among those whose bytes it has."""
        return self.row_begin - self.stored_begin if self.own_rows else 0

    def elements(self, columns: int) -> tuple[int, int]:
        """Its elements of the whole, row by row: the first, and the one behind the last."""
        return self.row_begin * columns, self.row_end * columns

    def ranges(self, columns: int) -> list[tuple[int, int]]:
        """The elements of each rank."""
        return [self._replace(rank=rank).elements(columns) for rank in range(self.shards)]

    def ranges_of_part(self, part: int) -> list[tuple[int, int]]:
        """The elements of each rank that has some of another part, in that."""
        rows, columns = self.shapes[part]
        return self._replace(rows=rows, shard_rows=-(-rows // self.shards)).ranges(columns)


class UnalignedStore(Store):
    """The shard of a rank that has blocks in common with others: `bytes` has shard.stored_rows
    rows, of which `rows`, those of the master, are its own; what other ranks have of those blocks
    is not there.
    """

    __slots__ = ("shard",)

    def __init__(
        self,
        bytes: _C.Buffers,
        master: torch.Tensor | None,
        config: WeightConfig,
        shard: UnalignedShard,
    ):
        super().__init__(bytes, master, config, shard.own_rows)
        self.shard, self.partial = shard, True

    @property
    def needs_others(self) -> bool:
        return True

    @property
    def rows_before(self) -> int:
        return self.shard.rows_before

    def _over(self, bytes: _C.Buffers, master: torch.Tensor | None) -> UnalignedStore:
        return UnalignedStore(bytes, master, self.config, self.shard)

    def check_aligned(self, what: str) -> None:
        raise ValueError(
            f"{self.describe()}: this shard shares blocks with those of other ranks, so it "
            f"cannot {what}. Use its value (weight.value, or what dequantize() makes)"
        )

    def _decode(self, bytes: _C.Buffers, region: Region, dtype, usage: str) -> torch.Tensor:
        value = casting.decode(bytes, dtype, usage)
        return region._replace(row=region.row + self.rows_before).slice(value)


def shard_of(store: Store) -> UnalignedShard | None:
    """Where a shard lies that has blocks in common with other ranks; None for any other store."""
    return store.shard if isinstance(store, UnalignedStore) else None


# ---- how they are made ----


def fill(made: UnalignedStore, store: Store) -> None:
    """Copies the shard's part of a whole matrix."""
    shard = made.shard
    stored = Region(shard.stored_begin, shard.stored_rows, 0, store.columns)
    buffers.copy_region(made.bytes, buffers.full_region(made.bytes), store.bytes, stored)
    buffers.copy_spanning(made.bytes, store.bytes)


def new_empty(store: Store, shard: UnalignedShard, device: torch.device) -> UnalignedStore:
    """Undefined bytes of a shard in the usages that it keeps."""
    usages = buffers.kept_usages(store.format, store.bytes.usages)
    bytes = buffers.allocate(store.format, shard.stored_rows, store.columns, usages, device)
    return UnalignedStore(bytes, None, store.config, shard)
