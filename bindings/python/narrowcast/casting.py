"""Bytes from values: the casts of one matrix or of many, with the one amax reduction that some
formats need.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from narrowcast import _C
from narrowcast.registry import COLUMNWISE_DATA, COLUMNWISE_SCALE

if TYPE_CHECKING:
    from narrowcast.matrix import Matrix

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


def cast_value(matrix: Matrix, value: torch.Tensor, source_bf16: bool = False) -> None:
    """Makes the bytes of a matrix from a value, [rows, columns] of float32, bfloat16 or float16."""
    batch = _Batch([matrix], [value.contiguous()], source_bf16)
    batch.reduce_amax()
    batch.cast()


def cast_masters(matrices: list[Matrix], group: dist.ProcessGroup | None = None) -> None:
    """Makes the bytes of matrices from their masters. The amaxes of all those that are parts of
    larger tensors are reduced over `group`, at once.
    """
    by_kind = defaultdict(list)
    for matrix in matrices:
        by_kind[matrix.device, matrix.format, matrix.partial].append(matrix)
    batches = [_Batch(same, [matrix.master for matrix in same]) for same in by_kind.values()]
    for batch in batches:
        batch.reduce_amax()
    spanning = [b.amaxes for b in batches if b.amaxes is not None and b.matrices[0].partial]
    if spanning and group is not None:
        reduce_over(spanning, group)
    for batch in batches:
        batch.cast()


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
            described = [_described(matrix, None)]
            _C.derive_columnwise(matrix.format.plugin, described, stream_of(data.device))
    matrix.filled.add("columnwise")


def _described(matrix: Matrix, value: torch.Tensor | None) -> tuple:
    return matrix.rows, matrix.columns, value, matrix.buffers, matrix.amax


class _Batch:
    """Matrices of one format on one device, cast in one launch."""

    def __init__(self, matrices, values, source_bf16=False):
        self.matrices, self.source_bf16 = matrices, source_bf16
        self.format, self.device = matrices[0].format, matrices[0].device
        self.described = [_described(*pair) for pair in zip(matrices, values, strict=True)]
        self.amaxes = None
        if self.format.tensor_amax:
            self.amaxes = torch.zeros(len(matrices), dtype=torch.float32, device=self.device)

    def reduce_amax(self) -> None:
        if self.amaxes is not None and not self.amaxes.is_meta:
            options = self.source_bf16, stream_of(self.device)
            _C.reduce_amax(self.format.plugin, self.described, self.amaxes, *options)

    def cast(self) -> None:
        if self.device.type != "meta":
            options = self.source_bf16, stream_of(self.device)
            _C.cast(self.format.plugin, self.described, self.amaxes, *options)
        for index, matrix in enumerate(self.matrices):
            if matrix.rows * matrix.columns == 0:
                self._settle_empty(matrix, index)
            matrix.filled = set(matrix.usages)
            matrix.stale = matrix.initializing = False

    def _settle_empty(self, matrix: Matrix, index: int) -> None:
        """What a kernel, which has no element to visit, leaves undone: a whole tensor's scale is
        that of zeros (1, or the least of e8m0), and an empty shard stores the amax of its tensor.
        """
        for buffer in matrix.buffers:
            if buffer is not None and buffer.dim() == 1:
                buffer.fill_(buffer.dtype == torch.float32)
        if self.amaxes is not None:
            matrix.amax.copy_(self.amaxes[index])
