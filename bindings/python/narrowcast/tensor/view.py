"""What a QuantizedTensor is, apart from torch: a view of a store."""

from __future__ import annotations

import torch

from narrowcast import _C
from narrowcast.registry import USAGES, buffers_of
from narrowcast.tensor.region import Region, rows_of, strides
from narrowcast.tensor.store import Store
from narrowcast.tensor.store_copies import part_of


class View:
    """A region of a store's matrix, perhaps with rows and columns exchanged. Values are [rows,
    columns] in the orientation of the view.

    Or, with a `place`, elements of the matrix in an order that its bytes do not have (a transposed
    view, in most formats): its shape, strides and first element over the matrix stored row by row.
    Products and arithmetic read its values. NotImplementedError for all that asks for its bytes.
    """

    __slots__ = ("_region", "exchanged", "is_whole", "place", "store")

    def __init__(
        self,
        store: Store,
        region: Region | None = None,
        exchanged: bool = False,
        place: tuple[tuple[int, ...], tuple[int, ...], int] | None = None,
    ):
        self.store, self.exchanged, self.place = store, exchanged, place
        self._region = region or (store.region if place is None else None)
        self.is_whole = not exchanged and self._region == store.region

    @property
    def region(self) -> Region:
        if self._region is not None:
            return self._region
        transpose = self.store.format.rules.transpose
        parts = "they are those of one matrix, and it transposes parts of that"
        raise NotImplementedError(
            f"{self.store.describe()}: this transposed view has no bytes: "
            f"{transpose.text if transpose.kind == 'error' else parts}. Products and arithmetic "
            "read its values; for all else use dequantize(), or nc.to_plain(model) before an "
            "export or torch.jit"
        )

    @property
    def key(self) -> int:
        """Equal for two views that are the same part of one weight."""
        if self.is_whole:
            return id(self.store)
        return hash((id(self.store), self.region, self.exchanged))

    def is_same(self, other: View) -> bool:
        facts = ((one.store, one._region, one.exchanged, one.place) for one in (self, other))
        return len(set(facts)) == 1

    @property
    def first(self) -> int:
        """The index of the first element in the matrix."""
        if self.place is not None:
            return self.place[2]
        return self.region.row * self.store.columns + self.region.column

    def strides(self, shape) -> tuple[int, ...]:
        """Those that it has of the matrix stored row by row, under a shape."""
        if self.place is not None:
            return self.place[1]
        return strides(shape, self.exchanged, self.store.columns)

    def own_usage(self, usage: str) -> str:
        """What the store calls a usage of this view, and the other way round."""
        return USAGES[1 - USAGES.index(usage)] if self.exchanged else usage

    def oriented(self, value: torch.Tensor) -> torch.Tensor:
        """A value between the orientation of this view and that of its store."""
        return value.t() if self.exchanged else value

    # ---- its bytes and its value ----

    @property
    def usages(self) -> list[str]:
        return sorted(map(self.own_usage, self.store.bytes.usages), reverse=True)

    def buffer(self, usage: str, index: int) -> torch.Tensor | None:
        """The data (0) or the scales (1) of a usage, or None: the store's own, or a copy if they do
        not lie together. Of a gathered weight also bytes that follow from those that arrived.
        """
        own = self.own_usage(usage)
        if not (self.store.bytes.has(own) or self.store.derives(own)):
            return None
        bytes = self.store.fresh(own)
        part = bytes if self.is_whole else bytes.part(*self.region, (own,))
        return part.buffer(buffers_of(own)[index])

    def spanning(self, name: str) -> torch.Tensor | None:
        """What belongs to the whole tensor, by its name."""
        if getattr(self.store.bytes, name) is not None:
            self.store.refresh()
        return getattr(self.store.bytes, name)

    def decode(self, dtype: torch.dtype, usage: str) -> torch.Tensor:
        """The value, decoded from the bytes of one usage."""
        store, usage = self.store, self.own_usage(usage)
        if self.place is None:
            return self.oriented(store.dequantize(self.region, dtype, usage))
        shape, stride, first = self.place
        rows = rows_of(*self.place, store.step[0], store.rows, store.columns)
        value = store.dequantize(rows, dtype, usage)
        first += value.storage_offset() - rows.row * rows.columns
        return value.as_strided(shape, stride, first)

    def operand(self) -> _C.Buffers:
        """The bytes of this view alone: over the same memory where that is so."""
        self.store.check_aligned("be the operand of a product")
        self.store.refresh()
        bytes = self.store.bytes
        if self.is_whole:
            return bytes
        self.store.check_copied()
        part = bytes.part(*self.region, bytes.usages)
        return part.exchanged() if self.exchanged else part

    @property
    def graph_key(self) -> torch.Tensor:
        """By which the operators of a graph find its bytes, or of a `place` those of the matrix."""
        if self.is_whole or self.place is not None:
            return self.store.graph_key
        return torch.ops.narrowcast.part(self.store.graph_key, [*self.region], self.exchanged)

    # ---- copies ----

    def placed(self, exchanged: bool = False) -> tuple[Store, Region]:
        """A store and the region that this is, or is exchanged: a copy in the other orientation."""
        if self.exchanged == exchanged:
            return self.store, self.region
        copy = part_of(self.store, self.region).transposed()
        return copy, copy.region

    def own_store(self, device: torch.device | None = None) -> Store:
        """A copy of the bytes, as a matrix of their own and in the orientation of this view.
        `device`: where a copy in a trace is to be.
        """
        own = part_of(self.store, self.region, device)
        return own.transposed() if self.exchanged else own

    def __deepcopy__(self, memo) -> View:
        """On the CPU, for torch's staging of asynchronous checkpoints copies part by part."""
        return View(self.own_store().map(torch.Tensor.cpu))
