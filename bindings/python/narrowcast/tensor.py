"""QuantizedTensor: a torch.Tensor whose values are kept in a format's own bytes."""

from __future__ import annotations

import torch

from narrowcast import dispatch, fsdp, registry
from narrowcast.box import Box, matrix_shape, strides
from narrowcast.matrix import SPANNING, Matrix

LOGICAL_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_PARTS = (
    *("rowwise_data", "rowwise_scale_inv", "columnwise_data", "columnwise_scale_inv"),
    *(*SPANNING, "master"),
)


class QuantizedTensor(torch.Tensor):
    """A tensor in a narrow format, made by nc.quantize and nc.convert.

    It has the shape and the logical dtype (float32, bfloat16 or float16) of the tensor that it was
    made from. Shape and copy operations act on its bytes exactly or raise an error; arithmetic
    that makes a plain tensor decodes; arithmetic in place raises. A slice of rows is a view: it
    writes through.
    """

    # A box of _matrix, perhaps with rows and columns exchanged. In slots, never in __dict__, which
    # torch copies and pickles in ways of its own.
    __slots__ = ("_box", "_exchanged", "_matrix")

    @staticmethod
    def __new__(
        cls,
        matrix: Matrix,
        shape,
        dtype: torch.dtype,
        box: Box | None = None,
        exchanged: bool = False,
    ):
        box = matrix.whole if box is None else box
        tensor = torch.Tensor._make_wrapper_subclass(
            *(cls, shape, strides(shape, exchanged, matrix.columns)),
            storage_offset=box.row * matrix.columns + box.column,
            dtype=dtype,
            device=matrix.device,
        )
        tensor._matrix, tensor._box, tensor._exchanged = matrix, box, exchanged
        return tensor

    def __init__(self, *args, **kwargs):
        super().__init__()  # all is done in __new__

    # ---- what it is made of ----

    @property
    def format(self) -> registry.Format:
        """The facts of its format."""
        return self._matrix.format

    @property
    def rowwise_data(self) -> torch.Tensor | None:
        """uint8, two-dimensional: the rowwise codes. None where absent.

        The buffer itself, or a copy if this is a view whose bytes do not lie together.
        """
        return self._buffer("rowwise", 0)

    @property
    def rowwise_scale_inv(self) -> torch.Tensor | None:
        """uint8 or float32: the rowwise scales with their zero padding; (1,) where one scale spans
        the tensor. None where absent.
        """
        return self._buffer("rowwise", 1)

    @property
    def columnwise_data(self) -> torch.Tensor | None:
        """uint8, two-dimensional: the columnwise codes. None where absent."""
        return self._buffer("columnwise", 0)

    @property
    def columnwise_scale_inv(self) -> torch.Tensor | None:
        """uint8 or float32: the columnwise scales, as rowwise_scale_inv."""
        return self._buffer("columnwise", 1)

    def _buffer(self, usage: str, index: int) -> torch.Tensor | None:
        usage = self.own_usage(usage)
        if usage not in self._matrix.filled:
            return None
        self._matrix.require(usage)
        return self._matrix.canonical(registry.buffers_of(usage)[index], self._box)

    def own_usage(self, usage: str) -> str:
        """What the matrix calls a usage of this tensor, and the other way round."""
        return registry.other_usage(usage) if self._exchanged else usage

    @property
    def amax(self) -> torch.Tensor | None:
        """float32 (1,): the largest magnitude of the whole tensor, in formats with a scale that
        spans it. None in others.
        """
        return self._spanning("amax")

    @property
    def history(self) -> torch.Tensor | None:
        """float32, in formats with delayed scaling: the multiplier of encoding behind the bytes,
        that of the next optimizer step, and the amaxes of the whole tensor's last casts, the
        newest first. None in others.
        """
        return self._spanning("history")

    def _spanning(self, name: str) -> torch.Tensor | None:
        if getattr(self._matrix, name) is not None:
            self._matrix.refresh()
        return getattr(self._matrix, name)

    @property
    def master(self) -> torch.Tensor | None:
        """float32, of this shape: the value that the bytes are made from, which the optimizer
        owns. None if it is not kept.
        """
        if self._matrix.master is None:
            return None
        master = self._oriented(self._box.of(self._matrix.master))
        return master if master.shape == self.shape else master.view(self.shape)

    def _oriented(self, value: torch.Tensor) -> torch.Tensor:
        """A value between the orientation of this tensor and that of its matrix."""
        return value.t() if self._exchanged else value

    def dequantize(
        self, dtype: torch.dtype = torch.float32, usage: str = "rowwise"
    ) -> torch.Tensor:
        """The value: a plain tensor of this shape, decoded from the bytes of one usage. Its
        gradient is the identity.

        ValueError if the usage is absent; TypeError if dtype is not float32, bfloat16 or float16.
        """
        if dtype not in LOGICAL_DTYPES:
            raise TypeError(f"dequantize makes float32, bfloat16 or float16, not {dtype}")
        return _Dequantize.apply(self, dtype, usage)

    @property
    def is_flat(self) -> bool:
        """Whether this is view(-1) of a matrix: it keeps the matrix's geometry, and serves views
        back, copies and storage queries alone.
        """
        return self.dim() == 1 and not self._exchanged and self._box.rows != 1

    def __repr__(self, *, tensor_contents=None) -> str:
        usages = " and ".join(sorted(map(self.own_usage, self._matrix.filled), reverse=True))
        grad = ", requires_grad=True" if self.requires_grad else ""
        return (
            f"QuantizedTensor({self.format.name}, {usages}, shape={tuple(self.shape)}, "
            f"dtype={self.dtype}, device={self.device}{grad})"
        )

    # ---- for the rest of narrowcast ----

    def describe(self) -> str:
        """For messages."""
        return self._matrix.describe()

    def decode(self, dtype: torch.dtype, usage: str = "rowwise") -> torch.Tensor:
        """dequantize() outside autograd."""
        value = self._matrix.dequantize(self._box, dtype, self.own_usage(usage))
        value = self._oriented(value)
        return value if value.shape == self.shape else value.reshape(self.shape)

    def alias(self, shape=None) -> QuantizedTensor:
        """The same bytes, perhaps under another shape."""
        shape = self.shape if shape is None else shape
        return QuantizedTensor(self._matrix, shape, self.dtype, self._box, self._exchanged)

    def with_matrix(self, matrix: Matrix, dtype: torch.dtype | None = None) -> QuantizedTensor:
        """A tensor of this shape over other bytes."""
        return QuantizedTensor(matrix, self.shape, dtype or self.dtype)

    @property
    def is_whole(self) -> bool:
        """Whether it is all of its matrix, and no transposed view of it."""
        return self._box == self._matrix.whole and not self._exchanged

    def placed(self, exchanged: bool = False) -> tuple[Matrix, Box]:
        """A matrix and the box of it that this tensor is, or is when exchanged: a copy where its
        own matrix has the other orientation.
        """
        if self._exchanged == exchanged:
            return self._matrix, self._box
        copy = self._matrix.part(self._box).exchanged()
        return copy, copy.whole

    def own_matrix(self) -> Matrix:
        """A copy of the bytes, as a matrix of their own and in the orientation of this tensor."""
        own = self._matrix.part(self._box)
        return own.exchanged() if self._exchanged else own

    def detach_from_whole(self) -> None:
        """Sees to it that this is a whole matrix of its own, no view."""
        if not self.is_whole:
            self._matrix = self.own_matrix()
            self._box, self._exchanged = self._matrix.whole, False

    def write(self, value: torch.Tensor) -> None:
        """Sets the value, of this shape; see Matrix.write."""
        matrix_like = self._box.shape[::-1] if self._exchanged else self._box.shape
        self._matrix.write(self._box, self._oriented(value.reshape(matrix_like)))

    # ---- torch's protocols ----

    def untyped_storage(self) -> torch.UntypedStorage:
        """That of the first buffer: FSDP2 compares storages, and a wrapper has none. An object of
        its own, because torch.compile asks which tensors share one.
        """
        first = self._matrix.tensors[0]
        storage = first.untyped_storage()
        return storage[:] if type(first) is torch.Tensor and not first.is_meta else storage

    def data_ptr(self) -> int:
        """0: the bytes have no one address."""
        return 0

    def _parts(self) -> tuple:
        matrix = self._matrix
        tensors = [getattr(self, name) for name in _PARTS]
        partial = matrix.partial or not self.is_whole
        return (
            *(self.format.name, tuple(self.shape), self.dtype, tensors),
            *(matrix.name, matrix.recompute, partial),
        )

    def __tensor_flatten__(self):
        format, _, dtype, tensors, *options = self._parts()
        present = [name for name, tensor in zip(_PARTS, tensors, strict=True) if tensor is not None]
        awaited = self._matrix.filled != set(self._matrix.usages)
        return present, (awaited, format, dtype, *options)

    @staticmethod
    def __tensor_unflatten__(inner, context, outer_size, outer_stride):
        awaited, format, dtype, *options = context
        tensors = [inner.get(name) for name in _PARTS]
        tensor = rebuild(format, tuple(outer_size), dtype, tensors, *options)
        tensor._matrix.awaited = awaited
        return tensor

    def __reduce_ex__(self, protocol):
        is_parameter = isinstance(self, torch.nn.Parameter)
        return rebuild, (*self._parts(), self.requires_grad, is_parameter)

    def __deepcopy__(self, memo):
        copy = self.detach().clone()
        if isinstance(self, torch.nn.Parameter):
            copy = torch.nn.Parameter(copy, requires_grad=self.requires_grad)
        memo[id(self)] = copy
        return copy

    # torch.compile looks at functions, and at operators, but not into what is behind them.
    @classmethod
    @torch.compiler.disable
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return dispatch.run_function(func, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return dispatch.run_operator(func, args, kwargs or {})

    # FSDP2 counts the parameters of these two.

    def fsdp_pre_all_gather(self, mesh):
        return fsdp.pre_all_gather(self)

    def fsdp_post_all_gather(self, all_gather_outputs, metadata, param_dtype, *, out=None):
        return fsdp.post_all_gather(all_gather_outputs, metadata, param_dtype, out)


class _Dequantize(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weight, dtype, usage):
        return weight.decode(dtype, usage)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None, None


def rebuild(
    format: str,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    tensors: list[torch.Tensor | None],
    name: str | None,
    recompute: bool,
    partial: bool,
    requires_grad: bool = False,
    is_parameter: bool = False,
) -> QuantizedTensor:
    """A QuantizedTensor from its parts, as pickling and __tensor_unflatten__ have them."""
    shape = tuple(map(int, shape))  # torch.compile may have symbols: a weight's shape is a fact
    count = len(registry.BUFFERS)
    buffers, spanning, master = tensors[:count], tensors[count:-1], tensors[-1]
    rows, columns = matrix_shape(shape)
    if master is not None:
        master = master.reshape(rows, columns).contiguous()
    matrix = Matrix(registry.format(format), rows, columns, buffers, *spanning, master=master)
    matrix.name, matrix.recompute, matrix.partial = name, recompute, partial
    tensor = QuantizedTensor(matrix, shape, dtype)
    return torch.nn.Parameter(tensor, requires_grad) if is_parameter else tensor


# torch.load(weights_only=True) calls nothing that is not listed.
torch.serialization.add_safe_globals([rebuild])
