"""Rows of matrices on all ranks become whole matrices, each on one rank, and rows again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain
from typing import NamedTuple

import torch
import torch.distributed as dist

from narrowcast.muon.matrices import Matrix

# All ranks together send so many bytes at once. That is enough for a network's speed, and little
# beside a model.
BUCKET_BYTES = 256 << 20


def deal(costs: Sequence[float], ranks: int) -> list[list[int]]:
    """Which of some tasks each rank does: the costliest first, each by who has the least so far."""
    queues, loads = [[] for _ in range(ranks)], [0.0] * ranks
    for task in sorted(range(len(costs)), key=lambda one: -costs[one]):
        rank = min(range(ranks), key=loads.__getitem__)
        queues[rank].append(task)
        loads[rank] += costs[task]
    return queues


def cut(queues: list[list[int]], sizes: Sequence[int], limit: int) -> list[list[list[int]]]:
    """The queues in buckets, each with tasks of every rank that has any left, whose sizes are at
    most `limit` in all. A bucket with one task of each rank may be larger.
    """
    made, size = [], limit
    for depth in range(max(map(len, queues))):
        layer = [queue[depth : depth + 1] for queue in queues]
        of_layer = sum(sizes[task] for tasks in layer for task in tasks)
        if size + of_layer > limit:
            made.append([[] for _ in queues])
            size = 0
        size += of_layer
        made[-1] = [tasks + more for tasks, more in zip(made[-1], layer, strict=True)]
    return made


class Piece(NamedTuple):
    """A rank's rows of a matrix."""

    task: int  # the matrix's number
    rows: int
    columns: int


class Bucket:
    """Matrices that travel together. `outer`: this rank's rows of all of them, by their owners;
    `inner`: every rank's rows of this rank's `own` ones. Sizes are bytes, of each other rank.
    """

    def __init__(self, tasks: list[list[int]], matrices: list[Matrix], rank: int):
        self.own = tasks[rank]
        outer = [[_piece(matrices, task, rank) for task in some] for some in tasks]
        inner = [[_piece(matrices, task, one) for task in self.own] for one in range(len(tasks))]
        self.outer, self.inner = ([*chain.from_iterable(each)] for each in (outer, inner))
        self.outer_sizes, self.inner_sizes = ([*map(_bytes, each)] for each in (outer, inner))


class Transfer(NamedTuple):
    """An all-to-all that is under way."""

    received: torch.Tensor
    work: dist.Work

    def wait(self) -> torch.Tensor:
        self.work.wait()
        return self.received


class Exchange:
    """Of matrices that a process group has cut in rows. In every bucket a rank sends its rows of
    each matrix to the owner, and gets its rows of the result back: two all-to-alls in bfloat16. One
    bucket travels while the one before it is orthogonalized.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device, matrices: list[Matrix]):
        self._group, self._device, self._matrices = group, device, matrices
        queues = deal([one.cost for one in matrices], group.size())
        sizes = [2 * one.rows * one.columns for one in matrices]
        every = cut(queues, sizes, BUCKET_BYTES)
        self._buckets = [Bucket(tasks, matrices, group.rank()) for tasks in every]

    def run(self, fill: Callable[[list[int], list[torch.Tensor]], None]) -> list[torch.Tensor]:
        """This rank's rows of every result, in the order of the matrices, where the parameters are.
        `fill` writes its rows of some matrices, by their numbers, to bfloat16 tensors.
        """
        found: dict[int, torch.Tensor] = {}
        leaving: deque[tuple[Bucket, Transfer]] = deque()

        def land():
            bucket, transfer = leaving.popleft()
            for piece, rows in zip(
                bucket.outer, _views(transfer.wait(), bucket.outer), strict=True
            ):
                found[piece.task] = rows.to(self._matrices[piece.task].device)

        coming = iter(self._buckets[1:])
        arriving = self._gather(self._buckets[0], fill)
        for bucket in self._buckets:
            gathered, following = arriving.wait(), next(coming, None)
            arriving = None if following is None else self._gather(following, fill)
            leaving.append((bucket, self._scatter(bucket, gathered)))
            if len(leaving) > 2:  # the first was back before this bucket was gathered
                land()
        while leaving:
            land()
        return [found[task] for task in range(len(self._matrices))]

    def _gather(self, bucket: Bucket, fill) -> Transfer:
        sent = self._empty(bucket.outer)
        fill([piece.task for piece in bucket.outer], _views(sent, bucket.outer))
        return self._send(sent, bucket.outer_sizes, bucket.inner, bucket.inner_sizes)

    def _scatter(self, bucket: Bucket, gathered: torch.Tensor) -> Transfer:
        """Orthogonalizes this rank's matrices of a bucket and sends every rank its rows."""
        own = bucket.own
        if len(own) == 1:  # whose rows came in their order
            matrix = self._matrices[own[0]]
            whole = gathered.view(matrix.rows, matrix.columns)
            gathered = matrix.orthogonalize(whole).view(-1)
        else:
            views = _views(gathered, bucket.inner)
            for place, task in enumerate(own):
                rows, matrix = views[place :: len(own)], self._matrices[task]
                result = matrix.orthogonalize(torch.cat(rows))
                torch._foreach_copy_([*rows], [*result.split(matrix.shares)])
        return self._send(gathered, bucket.inner_sizes, bucket.outer, bucket.outer_sizes)

    def _send(self, sent, sizes, pieces, received_sizes) -> Transfer:
        received = self._empty(pieces)
        as_bytes = [one.view(torch.uint8) for one in (received, sent)]  # which gloo sends, too
        work = dist.all_to_all_single(
            *as_bytes, received_sizes, sizes, group=self._group, async_op=True
        )
        return Transfer(received, work)

    def _empty(self, pieces: list[Piece]) -> torch.Tensor:
        count = _bytes(pieces) // 2
        return torch.empty(count, dtype=torch.bfloat16, device=self._device)


def _piece(matrices: list[Matrix], task: int, rank: int) -> Piece:
    return Piece(task, matrices[task].shares[rank], matrices[task].columns)


def _bytes(pieces: list[Piece]) -> int:
    """Of their elements in bfloat16."""
    return sum(2 * piece.rows * piece.columns for piece in pieces)


def _views(flat: torch.Tensor, pieces: list[Piece]) -> list[torch.Tensor]:
    """The rows that lie one after another in a run of elements."""
    runs = flat.split([piece.rows * piece.columns for piece in pieces]) if pieces else ()
    return [run.view(-1, piece.columns) for run, piece in zip(runs, pieces, strict=True)]
