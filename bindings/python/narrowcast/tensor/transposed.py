"""Transposed views of bytes that cannot be transposed: products and arithmetic read their values,
and nothing else acts on them.
"""

import torch

from narrowcast.tensor import serialize
from narrowcast.tensor.region import rows_of
from narrowcast.tensor.store import Store
from narrowcast.tensor.wrapper import QuantizedTensor, wrap


class Transposed(QuantizedTensor):
    """A QuantizedTensor that takes the elements of a matrix in an order that its bytes do not have.
    NotImplementedError, with the reason, for all that asks for its bytes.
    """

    @staticmethod
    def __new__(cls, store: Store, shape, stride, first: int, dtype: torch.dtype):
        """Of the shape and strides that it has over the matrix stored row by row, where `first` is
        the index of its first element.
        """
        view = Reading(store, tuple(shape), stride, first)
        return wrap(cls, view, shape, stride, dtype)

    is_flat = False

    def inner_tensors(self) -> list[torch.Tensor | None]:
        return serialize.inner_of_gathered(self._store)

    def __tensor_flatten__(self):
        store = self._store
        matrix = store.format.name, (store.rows, store.columns), store.partial
        return serialize.names_of(self.inner_tensors()), (
            *matrix,
            serialize.Uncompared(store.config),
            self.stride(),
            self._view.first,
            self.dtype,
        )

    @staticmethod
    def __tensor_unflatten__(inner, context, outer_size, outer_stride):
        format, matrix, partial, uncompared, *place = context
        *tensors, present = map(inner.get, serialize.INNER)
        options = partial, None, uncompared.config, present
        store = serialize.store_of(format, matrix, tensors, *options)
        return Transposed(store, tuple(map(int, outer_size)), *place)


class Reading:
    """What a Transposed has in the place of a View: elements of a store's matrix by shape, strides
    and the index of the first, as torch has them.
    """

    is_whole = exchanged = False

    def __init__(self, store: Store, shape, stride, first: int):
        self.store, self.first = store, first
        self._shape, self._stride = shape, stride

    @property
    def usages(self) -> list[str]:
        return self.store.bytes.usages

    def spanning(self, name: str) -> torch.Tensor | None:
        """What belongs to the whole tensor, by its name."""
        return getattr(self.store.bytes, name)

    @property
    def master(self) -> torch.Tensor:
        """The same elements of the store's. Where that has none, __getattr__ is asked."""
        value = self.store.master.value
        return value.as_strided(self._shape, self._stride, value.storage_offset() + self.first)

    def read(self, dtype: torch.dtype, backward: bool) -> torch.Tensor:
        """The value that a product of a pass reads; see View.read."""
        return self.decode(dtype, self.store.product_usage(backward))

    def decode(self, dtype: torch.dtype, usage: str) -> torch.Tensor:
        """The value, decoded from the bytes of one usage."""
        store, place = self.store, (self._shape, self._stride, self.first)
        rows = rows_of(*place, store.step[0], store.rows, store.columns)
        return strided(store.dequantize(rows, dtype, usage), rows, *place)

    def __getattr__(self, name: str):
        raise NotImplementedError(
            f"{self.store.describe()}: this transposed view {self.reason()}. Products and "
            "arithmetic read its values; for all else use dequantize()"
        )

    def reason(self) -> str:
        """Why it has no bytes."""
        transpose = self.store.format.rules.transpose
        if transpose.kind == "error":
            return f"has no bytes: {transpose.text}"
        return "has no bytes: they are those of one matrix, and it transposes parts of that"


def strided(value: torch.Tensor, rows, shape, stride, first: int) -> torch.Tensor:
    """The view by shape, strides and first element of a matrix of which `value` has some rows."""
    return value.as_strided(shape, stride, first - rows.row * rows.columns)
