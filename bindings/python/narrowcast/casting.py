"""Bytes from values: the casts of one matrix or of many, with the one amax reduction that some
formats need.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.distributed as dist

from narrowcast import _C
from narrowcast.registry import COLUMNWISE_DATA, COLUMNWISE_SCALE

if TYPE_CHECKING:
    from narrowcast.matrix import Matrix

NEWEST_AMAX = slice(2, 3)  # of a history

_stale_marks = 0
_last_reduction: dist.Work | None = None


def count_stale() -> None:
    global _stale_marks
    _stale_marks += 1


def stale_marks() -> int:
    """How often a master has been written to: while it stands still, nothing becomes stale."""
    return _stale_marks


def stream_of(device: torch.device) -> int:
    """The current stream of a CUDA device, as an address; 0 for the CPU."""
    return torch._C._cuda_getCurrentRawStream(device.index) if device.type == "cuda" else 0


class Draw(NamedTuple):
    """What the random words of stochastic rounding are a function of: docs/numerics.md, "Stochastic
    rounding". `first`: the index of the matrix's first element in the whole tensor.
    """

    seed: int
    step: int
    first: int

    def moved(self, elements: int) -> Draw:
        """The draw of a matrix that begins so many elements later."""
        return self._replace(first=(self.first + elements) % 2**64)


class Saved(NamedTuple):
    """The bytes to make are those of a saved state: with the rounding that the step before it used
    (None: to nearest), and with the multiplier of its history, to which nothing is added.
    """

    draw: Draw | None

    def moved(self, elements: int) -> Saved:
        return self if self.draw is None else Saved(self.draw.moved(elements))


def cast_value(
    matrix: Matrix, value: torch.Tensor, source_bf16: bool = False, draw: Draw | None = None
) -> None:
    """Makes the bytes of a matrix from a value, [rows, columns] of float32, bfloat16 or float16.
    With a draw, codes are rounded stochastically.
    """
    batch = _Batch([matrix], [value.contiguous()], source_bf16, [draw])
    batch.reduce_amax()
    batch.cast()


def cast_masters(matrices: list[Matrix], group: dist.ProcessGroup | None = None) -> None:
    """Makes the bytes of matrices from their masters. The amaxes of all those that are parts of
    larger tensors are reduced over `group`, at once.
    """
    _agree_on_saved([m for m in matrices if m.partial and m.format.tensor_amax], group)
    by_kind = defaultdict(list)
    for matrix in matrices:
        again = matrix.saved is not None
        stochastic = again and matrix.saved.draw is not None
        by_kind[matrix.device, matrix.format, matrix.partial, again, stochastic].append(matrix)
    batches = [_Batch.of_masters(same) for same in by_kind.values()]
    for batch in batches:
        batch.reduce_amax()
    spanning = [b.amaxes for b in batches if b.amaxes is not None and b.matrices[0].partial]
    if spanning and group is not None:
        reduce_over(spanning, group)
    for batch in batches:
        batch.cast()


def _agree_on_saved(shards: list[Matrix], group: dist.ProcessGroup | None) -> None:
    """The bytes of a tensor are those of a saved state only if all of its shards are: otherwise the
    ranks would reduce different amaxes.
    """
    if group is None or not shards:
        return
    changed = [float(shard.saved is None) for shard in shards]
    on_any = torch.tensor(changed, dtype=torch.float32, device=shards[0].device)
    reduce_over([on_any], group)
    for shard, is_new in zip(shards, on_any.tolist(), strict=True):
        if is_new:
            shard.saved = None


def reduce_over(amaxes: list[torch.Tensor], group: dist.ProcessGroup) -> None:
    """One maximum over the ranks for all tensors of the list, in place. NaN is never in them."""
    together = amaxes[0] if len(amaxes) == 1 else torch.cat(amaxes)
    work = dist.all_reduce(together, op=dist.ReduceOp.MAX, group=group, async_op=True)
    work.wait()
    # Kept until the next one: if gloo's thread dropped the last reference, it would take Python's
    # lock to free a tensor, which aborts the process if the interpreter is exiting by then.
    global _last_reduction
    _last_reduction = work
    if together is not amaxes[0]:
        torch._foreach_copy_(amaxes, together.split([len(amax) for amax in amaxes]))


def derive_columnwise(matrix: Matrix) -> None:
    """Fills the columnwise buffers from the rowwise bytes, where they are a rearrangement."""
    data, scale = matrix.buffers[COLUMNWISE_DATA], matrix.buffers[COLUMNWISE_SCALE]
    if not data.is_meta:
        # autograd may have saved a weight whose bytes are derived only now: its value is the same.
        with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter((data, scale)):
            used = matrix.format.used_shape(COLUMNWISE_SCALE, matrix.rows, matrix.columns)
            if used != scale.shape:
                scale.zero_()  # the padding: FSDP2 allocates the memory anew for each gather
            _C.derive_columnwise(
                matrix.format.plugin, [described(matrix, None)], stream_of(data.device)
            )
    matrix.filled.add("columnwise")


def described(matrix: Matrix, value: torch.Tensor | None) -> tuple:
    """A matrix as the functions of _C take it."""
    return matrix.rows, matrix.columns, value, matrix.buffers, matrix.amax, matrix.history


class _Batch:
    """Matrices of one format on one device, cast in one launch. All or none have draws, and all or
    none are those of a saved state.
    """

    def __init__(self, matrices, values, source_bf16, draws, again=False):
        self.matrices, self.source_bf16 = matrices, source_bf16
        self.draws = None if draws[0] is None else draws
        self.format, self.device = matrices[0].format, matrices[0].device
        self.described = [described(*pair) for pair in zip(matrices, values, strict=True)]
        self.keeps_history = again and self.format.is_delayed
        self.amaxes = None
        if self.format.tensor_amax and not self.keeps_history:
            self.amaxes = torch.zeros(len(matrices), dtype=torch.float32, device=self.device)

    @classmethod
    def of_masters(cls, matrices) -> _Batch:
        again = matrices[0].saved is not None
        draws = [matrix.saved.draw if again else None for matrix in matrices]
        return cls(matrices, [matrix.master for matrix in matrices], False, draws, again)

    def reduce_amax(self) -> None:
        if self.amaxes is not None and not self.amaxes.is_meta:
            options = self.source_bf16, stream_of(self.device)
            _C.reduce_amax(self.format.plugin, self.described, self.amaxes, *options)

    def cast(self) -> None:
        if self.device.type != "meta":
            self._launch(self.format.plugin, stream_of(self.device))
        for matrix in self.matrices:
            if self.keeps_history:
                matrix.amax.copy_(matrix.history[NEWEST_AMAX])
            matrix.filled = set(matrix.usages)
            matrix.stale = matrix.initializing = False
            matrix.saved = None

    def _launch(self, plugin, stream) -> None:
        if self.format.is_delayed and not self.keeps_history:
            _C.start_history(plugin, self.described, self.amaxes, stream)
        _C.cast(plugin, self.described, self.amaxes, self.source_bf16, self.draws, stream)
