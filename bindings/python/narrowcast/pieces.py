"""Matrices from boxes of others: where a matrix may be cut, copies of a box, a shard to fill."""

from __future__ import annotations

import torch

from narrowcast import buffers, casting, errors, spanning
from narrowcast.box import Box
from narrowcast.matrix import Matrix
from narrowcast.registry import USAGES


def check_cut(matrix: Matrix, box: Box) -> None:
    """ValueError unless a box begins and ends where the matrix can be cut."""
    row_step, column_step = matrix.step
    for row in (box.row, box.row_end):
        if row % row_step != 0 and row < min(matrix.used, matrix.rows):
            raise errors.cannot_cut(matrix, "row", row)
    for column in (box.column, box.column_end):
        if column % column_step != 0 and column < matrix.columns:
            raise errors.cannot_cut(matrix, "column", column)


def copy_box(target: Matrix, box: Box, source: Matrix, source_box: Box) -> None:
    """Copies a box of a matrix of the same format into a box of another, byte for byte, in the
    usages that both have, and the master, if the target has one.
    """
    target.copy_entries(box, source, source_box)
    if target.master is not None:
        box.of(target.master).copy_(source.high_precision(source_box))
    target.filled = set(target.usages)
    target.used = max(target.used, box.row_end)
    part_of_source = box.rows < source.used or box.columns < source.columns
    target.partial = target.partial or source.partial or part_of_source
    if source.stale:
        target.mark_stale(box.row_end)
        target.initializing = source.initializing
        if source.saved is not None:
            rows = source_box.row - box.row
            target.saved = source.saved.moved(rows * target.columns)
    spanning.copy(target, source)


def part_of(matrix: Matrix, box: Box) -> Matrix:
    """A copy of a box, as a matrix of its own."""
    if box == matrix.whole:
        return matrix.map(torch.clone)
    part = Matrix.allocate(
        *(matrix.format, *box.shape, matrix.usages, matrix.device),
        master=matrix.master is not None,
    ).inherit(matrix)
    copy_box(part, part.whole, matrix, box)
    part.partial = True
    return part


def with_columnwise(matrix: Matrix, box: Box) -> Matrix:
    """A copy of a box of rowwise bytes, with the columnwise ones that follow from them."""
    copy = Matrix.allocate(matrix.format, *box.shape, USAGES, matrix.device).inherit(matrix)
    copy_box(copy, copy.whole, matrix, box)
    casting.derive_columnwise(copy)
    return copy


def zeros_like(matrix: Matrix, rows: int, columns: int, device) -> Matrix:
    """A matrix of zeros of another size, in the same format, usages and options.

    FSDP2 begins a shard with it. So a derived columnwise is left out, because that of a shard is
    never gathered; and where `matrix` is the whole tensor and the new one has the size of its
    shards, what spans the tensor is taken over.
    """
    derived = matrix.format.columnwise_derived and "rowwise" in matrix.usages
    usages = ["rowwise"] if derived else matrix.usages
    master = matrix.master is not None
    zeros = Matrix.allocate(matrix.format, rows, columns, usages, device, master=master)
    zeros.inherit(matrix)
    buffers.fill_with_zeros(matrix.format, rows, columns, zeros.buffers)
    if master:
        zeros.master.zero_()
    zeros.used, zeros.partial = 0, matrix.partial
    if matrix.shards > 1 and rows == -(-matrix.rows // matrix.shards):
        zeros.partial = True
        spanning.copy(zeros, matrix)
    return zeros
