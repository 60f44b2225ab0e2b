"""Rows of matrices on all ranks become whole matrices, each on one rank, and rows again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist

from narrowcast.muon.matrices import Matrix

# Of what all ranks together send at once: enough for a network's speed, and little beside a model.
BUCKET_BYTES = 256 << 20


def deal(costs: Sequence[float], ranks: int) -> list[list[int]]:
    """Which of some tasks each rank does: the costliest first, each by who has the least so far."""
    queues, loads = [[] for _ in range(ranks)], [0.0] * ranks
    for task in sorted(range(len(costs)), key=lambda one: -costs[one]):
        rank = min(range(ranks), key=loads.__getitem__)
        queues[rank].append(task)
        loads[rank] += costs[task]
    return queues


def buckets(queues: list[list[int]], sizes: Sequence[int], limit: int) -> list[list[list[int]]]:
    """The queues, cut so that each bucket has some tasks of every rank that has any left, and their
    sizes are no more than `limit` in all, if one of each rank is not.
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
        self._rank = group.rank()
        queues = deal([one.cost for one in matrices], group.size())
        sizes = [2 * one.rows * one.columns for one in matrices]
        self._buckets = buckets(queues, sizes, BUCKET_BYTES)

    def run(self, fill: Callable[[list[int], list[torch.Tensor]], None]) -> list[torch.Tensor]:
        """This rank's rows of every result, in the order of the matrices. `fill` writes its rows of
        some matrices, by their numbers, to bfloat16 tensors.
        """
        leaving = []
        arriving = self._gather(self._buckets[0], fill)
        for number, bucket in enumerate(self._buckets):
            gathered = arriving.wait()
            if number + 1 < len(self._buckets):
                arriving = self._gather(self._buckets[number + 1], fill)
            leaving.append(self._scatter(bucket, gathered))
        found: dict[int, torch.Tensor] = {}
        for bucket, transfer in zip(self._buckets, leaving, strict=True):
            every = [(task, self._rank) for tasks in bucket for task in tasks]
            found.update(zip(_tasks(every), self._views(transfer.wait(), every), strict=True))
        return [found[task] for task in range(len(self._matrices))]

    def _gather(self, bucket, fill) -> Transfer:
        every = [(task, self._rank) for tasks in bucket for task in tasks]
        own = [(task, rank) for rank in range(len(bucket)) for task in bucket[self._rank]]
        sent = self._empty(every)
        fill(_tasks(every), self._views(sent, every))
        return self._send(sent, self._sizes(bucket), self._empty(own), self._own_sizes(bucket))

    def _scatter(self, bucket, gathered: torch.Tensor) -> Transfer:
        """Orthogonalizes this rank's matrices of a bucket and sends every rank its rows."""
        own = bucket[self._rank]
        pieces = [(task, rank) for rank in range(len(bucket)) for task in own]
        if len(own) == 1:  # whose rows came in their order
            matrix = self._matrices[own[0]]
            made = matrix.orthogonalize(gathered.view(matrix.rows, matrix.columns)).view(-1)
        else:
            made = gathered
            views = self._views(made, pieces)
            for place, task in enumerate(own):
                rows = views[place :: len(own)]
                matrix = self._matrices[task]
                result = matrix.orthogonalize(torch.cat(rows))
                torch._foreach_copy_([*rows], [*result.split(matrix.shares)])
        every = [(task, self._rank) for tasks in bucket for task in tasks]
        return self._send(made, self._own_sizes(bucket), self._empty(every), self._sizes(bucket))

    def _send(self, sent, sizes, received, received_sizes) -> Transfer:
        as_bytes = [one.view(torch.uint8) for one in (received, sent)]  # which gloo sends, too
        work = dist.all_to_all_single(
            *as_bytes, received_sizes, sizes, group=self._group, async_op=True
        )
        return Transfer(received, work)

    def _elements(self, task: int, rank: int) -> int:
        matrix = self._matrices[task]
        return matrix.shares[rank] * matrix.columns

    def _sizes(self, bucket) -> list[int]:
        """Bytes of this rank's rows of each rank's matrices."""
        return [2 * sum(self._elements(task, self._rank) for task in tasks) for tasks in bucket]

    def _own_sizes(self, bucket) -> list[int]:
        """Bytes of each rank's rows of this rank's matrices."""
        own = bucket[self._rank]
        ranks = range(len(bucket))
        return [2 * sum(self._elements(task, rank) for task in own) for rank in ranks]

    def _empty(self, pieces) -> torch.Tensor:
        count = sum(self._elements(*piece) for piece in pieces)
        return torch.empty(count, dtype=torch.bfloat16, device=self._device)

    def _views(self, flat: torch.Tensor, pieces) -> list[torch.Tensor]:
        """The rows that lie one after another in a run of elements."""
        rows = flat.split([self._elements(*piece) for piece in pieces]) if pieces else ()
        return [
            one.view(-1, self._matrices[task].columns)
            for one, (task, _) in zip(rows, pieces, strict=True)
        ]


def _tasks(pieces) -> list[int]:
    return [task for task, _ in pieces]
