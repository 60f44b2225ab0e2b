"""QuantizedTensor: a torch.Tensor whose values are kept in a format's own bytes."""

from __future__ import annotations

import torch
from torch import nn

from narrowcast import _C, registry
from narrowcast.tensor import buffers, compiling, dispatch, graphs, serialize
from narrowcast.tensor.region import matrix_shape
from narrowcast.tensor.store import Store, WeightConfig
from narrowcast.tensor.view import View

LOGICAL_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class QuantizedTensor(torch.Tensor):
    """A tensor in a narrow format, kept as bytes alone: a result of nc.quantize, a frozen weight of
    nc.convert, or a weight that FSDP2 has gathered.

    It has the shape and the logical dtype (float32, bfloat16 or float16) of its source. Shape and
    copy operations act on its bytes exactly, or are errors. Arithmetic reads decoded values. The
    only writes are loads (copy_), `w += x` and `w -= x`. A slice of rows is a view: it writes
    through.
    """

    # Not in __dict__, which torch copies and pickles in ways of its own.
    # _in_graphs: see narrowcast.tensor.graphs.
    __slots__ = ("_in_graphs", "_view")

    @staticmethod
    def __new__(
        cls, view: View | Store, shape=None, dtype=None, *, requires_grad: bool | None = None
    ):
        """Of a view, or of all of a store."""
        if requires_grad is not None:
            return moved(cls, view, requires_grad)
        view = view if isinstance(view, View) else View(view)
        place = {"strides": view.strides(shape), "storage_offset": view.first}
        # A wrapper made in inference mode could be no view of one that was made outside.
        with torch.inference_mode(False):
            tensor = torch.Tensor._make_wrapper_subclass(
                cls, shape, **place, dtype=dtype, device=view.store.device
            )
        _C.withhold_memory(tensor)
        tensor._view, tensor._in_graphs = view, (None, None, None)
        return tensor

    def __init__(self, *args, **kwargs):
        super().__init__()  # all is done in __new__

    # ---- what it is made of ----

    @property
    def format(self) -> registry.Format:
        """The facts of its format."""
        return self._store.format

    @property
    def rowwise_data(self) -> torch.Tensor | None:
        """uint8, two-dimensional: the rowwise codes; None where absent. It is the buffer itself, or
        a copy if this is a view whose bytes do not lie together.
        """
        return self._view.buffer("rowwise", 0)

    @property
    def rowwise_scale_inv(self) -> torch.Tensor | None:
        """uint8 or float32: the rowwise scales with their zero padding, of shape (1,) if one scale
        spans the tensor; None where absent.
        """
        return self._view.buffer("rowwise", 1)

    @property
    def columnwise_data(self) -> torch.Tensor | None:
        """uint8, two-dimensional: the columnwise codes. None where absent."""
        return self._view.buffer("columnwise", 0)

    @property
    def columnwise_scale_inv(self) -> torch.Tensor | None:
        """uint8 or float32: the columnwise scales, as rowwise_scale_inv."""
        return self._view.buffer("columnwise", 1)

    @property
    def tensor_amax(self) -> torch.Tensor | None:
        """float32 (1,): the tensor's largest magnitude, if a scale spans the tensor; else None."""
        return self._view.spanning("amax")

    @property
    def history(self) -> torch.Tensor | None:
        """float32 (n,), with delayed scaling: the multiplier that made the bytes, the multiplier of
        the next step, and the amaxes of the tensor's last casts, the newest first; else None.
        """
        return self._view.spanning("history")

    @property
    def nbytes(self) -> int:
        """The bytes of codes, scales, amax and history, with padding. element_size() is that of the
        logical dtype.
        """
        view, bytes = self._view, self._store.bytes
        if not view.is_whole:
            meta = torch.device("meta")
            bytes = buffers.allocate(bytes.format, *view.region.shape, bytes.usages, meta)
        return sum(one.nbytes for one in buffers.tensors_of(bytes) if one is not None)

    def get_high_precision_init_val(self) -> torch.Tensor | None:
        """float32, of this shape, on the CPU: a copy of the value that the bytes were made from,
        for an optimizer that keeps masters itself. Weights of Megatron's layers have it, and
        weights that an adapter was merged into; else None. Transformer Engine's name.
        """
        value = self.kept_value
        return None if value is None else value.detach().to("cpu", copy=True)

    def clear_high_precision_init_val(self) -> None:
        """Drops that value: from now on nc.quantize_master_weights makes the bytes."""
        self._store.refresh()
        self._store.drop_master()

    # ---- values ----

    def dequantize(
        self, dtype: torch.dtype = torch.float32, usage: str = "rowwise"
    ) -> torch.Tensor:
        """The value: a plain tensor of this shape and of `dtype`, decoded from the bytes of a usage
        ("rowwise" or "columnwise"). Its gradient is the identity. ValueError if the usage is
        absent; TypeError if dtype is not float32, bfloat16 or float16.
        """
        if dtype not in LOGICAL_DTYPES:
            raise TypeError(f"{self.describe()}: read as float32, bfloat16 or float16, not {dtype}")
        return Dequantize.apply(self, dtype, usage)

    @property
    def is_flat(self) -> bool:
        """Whether this is view(-1) of a matrix, whose geometry it keeps: it is cut where the matrix
        can be, between rows.
        """
        view = self._view
        is_row = view.exchanged or view.place is not None or view.region.rows == 1
        return self.dim() == 1 and not is_row

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

    @property
    def kept_value(self) -> torch.Tensor | None:
        """float32, of this shape: the value that the bytes are made from, which writes through;
        None where it is not kept.
        """
        view, value = self._view, self._store.master
        return None if value is None else view.oriented(view.region.slice(value)).view(self.shape)

    @property
    def config(self) -> WeightConfig:
        """Its name and nc.convert's options."""
        return self._store.config

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

    def set_view(self, view: View) -> None:
        """From now on it is another view."""
        self._view = view
        _C.note_change()

    # ---- torch's protocols ----

    def _set_grad(self, value: torch.Tensor | None) -> None:
        if value is None:
            _C.drop_grad(self)
        else:
            torch.Tensor.grad.__set__(self, value)

    # Without torch functions, which take several times as long: FSDP2 reads it twice and drops it
    # in each backward.
    grad = property(_C.grad, _set_grad, _C.drop_grad)

    def untyped_storage(self) -> torch.UntypedStorage:
        """That of the first buffer, because FSDP2 compares storages."""
        return compiling.storage_of(self._store.tensors[0])

    def data_ptr(self) -> int:
        """Of a parameter the address of its first buffer, because accelerate finds parameters by
        it. Else 0, because torch's asynchronous saving asks whether a tensor is memory.
        """
        first = self._store.tensors[0]
        if not isinstance(self, nn.Parameter) or type(first) is not torch.Tensor or first.is_meta:
            return 0
        return first.data_ptr()

    __tensor_flatten__ = graphs.flatten
    graph_key = property(graphs.key_of)
    _stable_hash_for_caching = graphs.stable_hash  # torch asks it from 2.12 on

    @staticmethod
    def __tensor_unflatten__(inner, context, outer_size, outer_stride):
        shape = tuple(map(int, outer_size))  # perhaps symbols, but a weight's shape is a fact
        view, dtype = graphs.unflatten(inner["graph_key"], context, shape)
        return QuantizedTensor(view, shape, dtype)

    def __reduce_ex__(self, protocol):
        parts = serialize.arguments_of(self)
        if graphs.is_fake(self):  # torch 2.11 pickles what a graph rests on, as a key
            parts = *parts, self._stable_hash_for_caching()
        return rebuild, parts

    def __deepcopy__(self, memo):
        copy = self.detach().clone()
        if isinstance(self, torch.nn.Parameter):
            copy = torch.nn.Parameter(copy, requires_grad=self.requires_grad)
        memo[id(self)] = copy
        return copy

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        handler = dispatch.FUNCTIONS.get(func, dispatch.as_torch_does)
        return handler(func, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return dispatch.run_operator(func, args, kwargs or {})


# torch.compile looks at functions and operators, but not into what is behind them.
compiling.leave_alone(QuantizedTensor.__torch_function__)


def moved(kind: type, value: torch.Tensor, requires_grad: bool) -> nn.Parameter:
    """A parameter of a class of weights, as accelerate moves one."""
    if not isinstance(value, kind):
        raise TypeError(
            "a plain value cannot take a converted weight's place. Offload with "
            "state_dict=model.state_dict(keep_vars=True), or nc.convert(..., trainable=False)"
        )
    return nn.Parameter(value, requires_grad)


class Dequantize(torch.autograd.Function):
    """The value in a dtype, decoded from the bytes of one usage. Its derivative is the identity."""

    @staticmethod
    def forward(weight, dtype, usage):
        return weight.decode(dtype, usage)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.dtype = output.dtype

    @staticmethod
    def vmap(info, in_dims, weight, dtype, usage):
        return weight.decode(dtype, usage), None

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None, None

    @staticmethod
    def jvp(ctx, tangent, dtype, usage):
        return tangent.to(ctx.dtype, copy=True)


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
    weight's name and the part, if the format keeps others.
    """
    try:
        facts, size = registry.format(format), flattened or matrix_shape(shape)
        if dtype not in LOGICAL_DTYPES:
            raise TypeError(f"its dtype is {dtype}, not float32, bfloat16 or float16")
        facts.check_matmul(matmul)
        kept = ("tensor_amax", facts.tensor_amax), ("history", facts.is_delayed)
        for (part, is_kept), tensor in zip(kept, tensors[4:], strict=False):
            if is_kept == (tensor is None):
                verbs = ("keeps one", "has none") if is_kept else ("keeps none", "has one")
                raise ValueError(f"{part}: {format} {verbs[0]}, and it {verbs[1]}")
        for index in registry.BUFFERS:  # empty ones may have any shape
            if tensors[index] is not None:
                tensors[index] = tensors[index].reshape(facts.buffer_shape(index, *size))
        bytes = _C.Buffers(facts, *size, tensors[:4], *tensors[4:])
        store = Store(bytes, None, WeightConfig(name, recompute, matmul))
        store.partial = partial
    except (RuntimeError, TypeError, ValueError) as error:
        words = "a saved QuantizedTensor" if name is None else f"saved weight {name!r}"
        raise type(error)(f"{words}: {error}") from None
    tensor = QuantizedTensor(store, shape, dtype)
    if is_parameter:
        for prepare in dispatch.PARAMETER_LOADED:
            prepare()
        return torch.nn.Parameter(tensor, requires_grad)
    return tensor.requires_grad_() if requires_grad else tensor


rebuild.__module__ = "narrowcast.tensor"  # as saved tensors name it
torch.serialization.add_safe_globals([rebuild])  # torch.load(weights_only=True) calls no others
