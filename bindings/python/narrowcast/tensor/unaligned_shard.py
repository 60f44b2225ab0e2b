"""Where the rows of a shard lie in the whole matrix, if cuts divide blocks or bytes of it."""

from __future__ import annotations

from typing import NamedTuple


class Place(NamedTuple):
    """The shard of a rank, of `shards` of `shard_rows` rows or fewer, in a matrix of `rows`. Its
    bytes are those of the blocks that hold its rows: of a matrix that begins and ends at multiples
    of `step`, the format's row step, or with the whole.

    The matrix may be a part of tensor parallelism: the one at `part` of those with the rows and
    columns `shapes`, all of which are cut into as many shards. `origin` is the index of its first
    element in the weight, if parts are runs of elements.
    """

    rank: int
    shards: int
    shard_rows: int
    rows: int
    step: int
    part: int = 0
    shapes: tuple[tuple[int, int], ...] = ()
    origin: int = 0

    @property
    def parts(self) -> int:
        return max(1, len(self.shapes))

    @property
    def row(self) -> int:
        """The first of its own rows."""
        return min(self.rank * self.shard_rows, self.rows)

    @property
    def end(self) -> int:
        return min(self.row + self.shard_rows, self.rows)

    @property
    def first(self) -> int:
        """The first of the rows whose bytes it has. A shard without rows has the bytes of the first
        blocks, of which nothing is its own.
        """
        return 0 if self.row == self.end else self.row // self.step * self.step

    @property
    def held(self) -> int:
        """The number of them."""
        end = self.end if self.row < self.end else 1
        return min(-(-end // self.step) * self.step, self.rows) - self.first

    @property
    def ahead(self) -> int:
        """Those of others ahead of its own."""
        return 0 if self.row == self.end else self.row - self.first

    def own(self, columns: int) -> tuple[int, int]:
        """Its elements of the whole, row by row: the first, and the one behind the last."""
        return self.row * columns, self.end * columns

    def ranges(self, columns: int) -> list[tuple[int, int]]:
        """Those of each rank."""
        return [self._replace(rank=rank).own(columns) for rank in range(self.shards)]

    def ranges_of_part(self, part: int) -> list[tuple[int, int]]:
        """Those of each rank that has some of another part, in that."""
        rows, columns = self.shapes[part]
        return self._replace(rows=rows, shard_rows=-(-rows // self.shards)).ranges(columns)
