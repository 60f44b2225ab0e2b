"""Regions of a matrix, and which views of it are regions.

A view is known by its shape, strides and first element, as torch has them, over the matrix stored
row by row. It is a region if it takes some rows and some columns in their order, or is such a
region with rows and columns exchanged, or is a whole one under one dimension.
"""

import math
from typing import NamedTuple


class Region(NamedTuple):
    """`rows` rows from `row` on, and `columns` columns from `column` on."""

    row: int
    rows: int
    column: int
    columns: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, self.columns

    @property
    def row_end(self) -> int:
        return self.row + self.rows

    @property
    def column_end(self) -> int:
        return self.column + self.columns

    @property
    def is_empty(self) -> bool:
        return self.rows == 0 or self.columns == 0

    def slice(self, tensor):
        """The region of a plain tensor [rows, columns]: a view, or the tensor itself."""
        if self.shape == tensor.shape:
            return tensor
        if self.is_empty:  # which lies nowhere
            return tensor.new_empty(self.shape)
        return tensor.narrow(0, self.row, self.rows).narrow(1, self.column, self.columns)


def matrix_shape(shape) -> tuple[int, int]:
    """Rows and columns of a tensor as a matrix: prod(shape[:-1]) x shape[-1]."""
    return math.prod(shape[:-1]), shape[-1] if len(shape) else 1


def find(shape, stride, offset: int, rows: int, columns: int) -> tuple[Region, bool] | None:
    """The region that a view of a matrix takes, and whether it is exchanged; None if it is none."""
    down, across = matrix_shape(shape)
    if down * across == 0:
        return Region(0, down, 0, across), False
    steps = _steps(shape, stride)
    if steps is None:
        return None
    row, column = divmod(offset, columns)
    straight = Region(row, down, column, across)
    if _follows(straight.shape, steps, (columns, 1)) and _fits(straight, rows, columns):
        return straight, False
    flat = Region(row, across // columns, column, columns)
    if len(shape) == 1 and steps[1] == 1 and flat.rows * columns == across:
        return (flat, False) if _fits(flat, rows, columns) else None
    exchanged = Region(row, across, column, down)
    if _follows(straight.shape, steps, (1, columns)) and _fits(exchanged, rows, columns):
        return exchanged, True
    return None


def rows_of(shape, stride, offset: int, step: int, rows: int, columns: int) -> Region:
    """The rows, cut at multiples of a step, in which a view of a rows x columns matrix lies."""
    if math.prod(shape) == 0:
        return Region(0, 0, 0, columns)
    last = offset + sum((size - 1) * along for size, along in zip(shape, stride, strict=True))
    begin, end = offset // columns // step * step, -(-(last // columns + 1) // step) * step
    return Region(begin, min(end, rows) - begin, 0, columns)


def _steps(shape, stride) -> tuple[int, int] | None:
    """How far neighbouring rows and columns are apart; None if the rows are not evenly so."""
    down, rows = 0, 1  # of the dimensions seen so far, from the inner to the outer
    for size, step in zip(reversed(shape[:-1]), reversed(stride[:-1]), strict=True):
        if size == 1:
            continue
        if rows == 1:
            down = step
        elif step != down * rows:
            return None
        rows *= size
    return down, stride[-1] if len(stride) else 1


def _follows(counts, steps, wanted) -> bool:
    """Whether neighbours are as far apart as wanted; one row or one column has none."""
    return all(
        count == 1 or step == want for count, step, want in zip(counts, steps, wanted, strict=True)
    )


def _fits(region: Region, rows: int, columns: int) -> bool:
    return region.row_end <= rows and region.column_end <= columns


def strides(shape, exchanged: bool, columns: int) -> tuple[int, ...]:
    """The strides of a region under a shape, over a matrix of that many columns."""
    across, down = (columns, 1) if exchanged else (1, columns)
    steps = [across] if len(shape) else []
    for size in reversed(shape[:-1]):
        steps.append(down)
        down *= max(size, 1)
    return tuple(reversed(steps))
