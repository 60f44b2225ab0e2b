"""QuantizedTensor: a torch.Tensor whose values are kept in a format's own bytes."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from narrowcast import _C
from narrowcast.tensor import checks, compiling, dispatch, graph_keys, memory, serialize
from narrowcast.tensor.attributes import Attributes
from narrowcast.tensor.checks import LOGICAL_DTYPES
from narrowcast.tensor.derivative import Dequantize
from narrowcast.tensor.region import Region, strides
from narrowcast.tensor.store import Store
from narrowcast.tensor.view import View
from narrowcast.tensor.weight_config import Label


class QuantizedTensor(Attributes, torch.Tensor):
    """A tensor in a narrow format, made by nc.quantize and nc.convert.

    It has the shape and the logical dtype (float32, bfloat16 or float16) of the tensor that it was
    made from. Shape and copy operations act on its bytes exactly or raise an error. Arithmetic that
    makes a plain tensor reads decoded values, outside of forwards and backwards the master; in
    place it raises, but for `w += x`, `w -= x` and averages, which act on the master. A slice of
    rows is a view: it writes through.
    """

    # Not in __dict__, which torch copies and pickles in ways of its own.
    # _flattened: see narrowcast.tensor.serialize.
    __slots__ = ("_flattened", "_view")

    @staticmethod
    def __new__(
        cls,
        store: Store,
        shape=None,
        dtype: torch.dtype | None = None,
        region: Region | None = None,
        exchanged: bool = False,
        requires_grad: bool | None = None,
    ):
        if requires_grad is not None:  # as accelerate moves a parameter
            if not isinstance(store, QuantizedTensor):
                raise TypeError(
                    "a plain value cannot take a quantized weight's place. Offload with state_dict="
                    "model.state_dict(keep_vars=True), or nc.convert(..., trainable=False)"
                )
            return nn.Parameter(store, requires_grad)
        view = View(store, region, exchanged)
        return wrap(cls, view, shape, strides(shape, exchanged, store.columns), dtype)

    def __init__(self, *args, **kwargs):
        super().__init__()  # all is done in __new__

    # ---- values ----

    def dequantize(
        self, dtype: torch.dtype = torch.float32, usage: str = "rowwise"
    ) -> torch.Tensor:
        """The value: a plain tensor of this shape, decoded from the bytes of one usage. Its
        gradient is the identity.

        ValueError if the usage is absent; TypeError if dtype is not float32, bfloat16 or float16.
        """
        if dtype not in LOGICAL_DTYPES:
            raise TypeError(f"{self.describe()}: read as float32, bfloat16 or float16, not {dtype}")
        return Dequantize.apply(self, dtype, usage)

    @property
    def is_flat(self) -> bool:
        """Whether this is view(-1) of a matrix: it keeps the matrix's geometry, and serves views
        back, copies and storage queries alone.
        """
        return self.dim() == 1 and not self._view.exchanged and self._view.region.rows != 1

    def __repr__(self, *, tensor_contents=None) -> str:
        grad = ", requires_grad=True" if self.requires_grad else ""
        return (
            f"QuantizedTensor({self.format.name}, {' and '.join(self._view.usages)}, "
            f"shape={tuple(self.shape)}, dtype={self.dtype}, device={self.device}{grad})"
        )

    # ---- for the rest of narrowcast ----

    @property
    def _store(self) -> Store:
        return self._view.store

    def describe(self) -> str:
        """For messages."""
        return self._store.describe()

    def decode(self, dtype: torch.dtype, usage: str = "rowwise") -> torch.Tensor:
        """dequantize() outside autograd."""
        value = self._view.decode(dtype, usage)
        return value if value.shape == self.shape else value.reshape(self.shape)

    def with_store(self, store: Store, dtype: torch.dtype | None = None) -> QuantizedTensor:
        """A tensor of this shape over other bytes."""
        return QuantizedTensor(store, self.shape, dtype or self.dtype)

    def detach_from_whole(self) -> None:
        """Sees to it that this is a whole matrix of its own, no view."""
        if not self._view.is_whole:
            self.become(self._view.own_store())

    def become(self, store: Store) -> None:
        """From now on it is a whole matrix, and so is what it was cut from, as autograd knows."""
        self.look_at(View(store))
        if self._base is not None:
            self._base.look_at(self._view)

    def look_at(self, view: View) -> None:
        """From now on it is another view."""
        self._view = view
        _C.note_change()

    def write(self, value: torch.Tensor) -> None:
        """Sets the value, of this shape; see narrowcast.tensor.writing."""
        self._view.write(value)

    # ---- torch's protocols ----

    def untyped_storage(self) -> torch.UntypedStorage:
        """That of the first buffer, for FSDP2 compares storages; an object of its own, for
        torch.compile asks which tensors share one.
        """
        first = self._store.tensors[0]
        own = type(first) is torch.Tensor and not first.is_meta
        return first.untyped_storage()[:] if own else first.untyped_storage()

    def data_ptr(self) -> int:
        """Of a parameter the address of its first buffer, for accelerate finds parameters by it. 0
        of all others: torch's asynchronous saving asks whether a tensor is memory.
        """
        first = self._store.tensors[0]
        is_there = isinstance(self, nn.Parameter) and memory.has_values(first)
        return first.data_ptr() if is_there else 0

    __tensor_flatten__ = serialize.flatten
    inner_tensors = serialize.inner_tensors
    _stable_hash_for_caching = graph_keys.stable_hash  # what torch asks from 2.12 on

    @staticmethod
    def __tensor_unflatten__(inner, context, outer_size, outer_stride):
        shape = tuple(map(int, outer_size))  # perhaps symbols, but a weight's shape is a fact
        store, dtype = serialize.unflatten(inner, context, shape)
        return QuantizedTensor(store, shape, dtype)

    def __reduce_ex__(self, protocol):
        if key := graph_keys.of_fake(self):
            return rebuild_traced, (key, *serialize.parts_of(self))
        return rebuild, serialize.parts_of(self)

    def __deepcopy__(self, memo):
        copy = self.detach().clone()
        if isinstance(self, torch.nn.Parameter):
            copy = torch.nn.Parameter(copy, requires_grad=self.requires_grad)
        memo[id(self)] = copy
        return copy

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return dispatch.run_function(func, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return dispatch.run_operator(func, args, kwargs or {})


for _index, _name in enumerate(serialize.INNER):
    setattr(QuantizedTensor, _name, property(partial(serialize.inner_tensor, index=_index)))
# torch.compile looks at functions and operators, but not into what is behind them.
compiling.leave_alone(QuantizedTensor.__torch_function__)


def wrap(cls, view: View, shape, strides, dtype: torch.dtype) -> QuantizedTensor:
    """A tensor of a view, of the strides that the view has of the matrix stored row by row."""
    place = {"strides": strides, "storage_offset": view.first}
    # A wrapper made in inference mode could be no view of one that was made outside.
    with torch.inference_mode(False):
        tensor = torch.Tensor._make_wrapper_subclass(
            cls, shape, **place, dtype=dtype, device=view.store.bytes.device
        )
    _C.withhold_memory(tensor)
    tensor._view, tensor._flattened = view, (None, None)
    return tensor


def rebuild(
    format: str,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    tensors: list[torch.Tensor | None],
    name: str | None,
    recompute: bool,
    partial: bool,
    flattened: tuple[int, int] | None,
    requires_grad: bool = False,
    is_parameter: bool = False,
    matmul: str = "dequantized",
) -> QuantizedTensor:
    """A QuantizedTensor from its parts, as pickling has them. ValueError or TypeError, with the
    weight's name and the part, for any that it does not make: a checkpoint may say anything.
    """
    options = name, recompute, partial, flattened, requires_grad, is_parameter, matmul
    tensors = checks.check_parts(format, shape, dtype, tensors, *options)
    label = Label(name, recompute, matmul)
    store = serialize.store_of(format, shape, tensors, partial, flattened, label)
    tensor = QuantizedTensor(store, shape, dtype)
    if is_parameter:
        for prepare in dispatch.PARAMETER_LOADED:
            prepare()
        return torch.nn.Parameter(tensor, requires_grad)
    return tensor.requires_grad_() if requires_grad else tensor


def rebuild_traced(key: tuple[str, ...], *args) -> QuantizedTensor:
    """rebuild() of a fake tensor's parts, with which torch 2.11 pickles what a graph rests on."""
    return rebuild(*args)


for _function in (rebuild, rebuild_traced):
    _function.__module__ = "narrowcast.tensor"  # as saved tensors name it
# torch.load(weights_only=True) calls nothing that is not listed.
torch.serialization.add_safe_globals([rebuild, rebuild_traced])
