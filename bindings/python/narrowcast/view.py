"""What a QuantizedTensor is, apart from torch: a view of a matrix."""

from __future__ import annotations

from typing import NamedTuple

import torch

from narrowcast.box import Box, whole_box
from narrowcast.matrix import Matrix
from narrowcast.pieces import part_of
from narrowcast.registry import buffers_of, other_usage


class View(NamedTuple):
    """A box of a matrix, perhaps with rows and columns exchanged. Values are [rows, columns] in the
    orientation of the view.
    """

    matrix: Matrix
    box: Box
    exchanged: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether it is all of its matrix, and not transposed."""
        return self.box == self.matrix.whole and not self.exchanged

    @property
    def first(self) -> int:
        """The index of the box's first element in the matrix."""
        return self.box.row * self.matrix.columns + self.box.column

    def own_usage(self, usage: str) -> str:
        """What the matrix calls a usage of this view, and the other way round."""
        return other_usage(usage) if self.exchanged else usage

    def oriented(self, value: torch.Tensor) -> torch.Tensor:
        """A value between the orientation of this view and that of its matrix."""
        return value.t() if self.exchanged else value

    # ---- its bytes and its value ----

    def buffer(self, usage: str, index: int) -> torch.Tensor | None:
        """The data (0) or the scales (1) of a usage, or None: the matrix's own, or a copy if they
        do not lie together.
        """
        usage = self.own_usage(usage)
        if usage not in self.matrix.filled:
            return None
        self.matrix.require(usage)
        return self.matrix.canonical(buffers_of(usage)[index], self.box)

    def spanning(self, name: str) -> torch.Tensor | None:
        """What belongs to the whole tensor, by its name."""
        if getattr(self.matrix, name) is not None:
            self.matrix.refresh()
        return getattr(self.matrix, name)

    @property
    def master(self) -> torch.Tensor | None:
        """The float32 value that the bytes are made from: it writes through."""
        master = self.matrix.master
        return None if master is None else self.oriented(self.box.of(master))

    def decode(self, dtype: torch.dtype, usage: str) -> torch.Tensor:
        """The value, decoded from the bytes of one usage."""
        return self.oriented(self.matrix.dequantize(self.box, dtype, self.own_usage(usage)))

    def write(self, value: torch.Tensor) -> None:
        """Sets the value, from one of any shape; see Matrix.write."""
        shape = self.box.shape[::-1] if self.exchanged else self.box.shape
        self.matrix.write(self.box, self.oriented(value.reshape(shape)))

    # ---- copies ----

    def placed(self, exchanged: bool = False) -> tuple[Matrix, Box]:
        """A matrix and the box of it that this view is, or is when exchanged: a copy where its own
        matrix has the other orientation.
        """
        if self.exchanged == exchanged:
            return self.matrix, self.box
        copy = part_of(self.matrix, self.box).exchanged()
        return copy, copy.whole

    def own_matrix(self) -> Matrix:
        """A copy of the bytes, as a matrix of their own and in the orientation of this view."""
        own = part_of(self.matrix, self.box)
        return own.exchanged() if self.exchanged else own


def whole_of(matrix: Matrix) -> View:
    """The view that is all of a matrix."""
    return View(matrix, whole_box(matrix.rows, matrix.columns))
