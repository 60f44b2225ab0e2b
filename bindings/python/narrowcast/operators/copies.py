"""Copies and new tensors: the bytes as they are in other memory, or zeros."""

from __future__ import annotations

import math

import torch

from narrowcast import casting
from narrowcast.dispatch import implements
from narrowcast.matrix import Matrix
from narrowcast.operators.common import bound, refuse, refuse_flat
from narrowcast.tensor import LOGICAL_DTYPES, QuantizedTensor, matrix_shape

aten = torch.ops.aten


@implements(aten.new_zeros.default)
def _new_zeros(func, args, kwargs):
    values = bound(func, args, kwargs)
    tensor, size = values["self"], tuple(values["size"])
    device, dtype = values["device"] or tensor.device, values["dtype"] or tensor.dtype
    if dtype not in LOGICAL_DTYPES:
        return torch.zeros(size, dtype=dtype, device=device)
    return QuantizedTensor(tensor._matrix.zeros(*matrix_shape(size), device), size, dtype)


@implements(aten.new_empty.default, aten.empty_like.default)
def _empty(func, args, kwargs):
    values = bound(func, args, kwargs)
    tensor, matrix = values["self"], values["self"]._matrix
    size = tuple(values.get("size", tensor.shape))
    rows, columns = matrix_shape(size) if "size" in values else (tensor._rows, matrix.columns)
    if math.prod(size) == 0:  # FSDP2 asks for new_empty(0), which no packed format could hold
        rows, columns = 0, matrix.columns
    device, dtype = values["device"] or tensor.device, values["dtype"] or tensor.dtype
    if dtype not in LOGICAL_DTYPES:
        return torch.empty(size, dtype=dtype, device=device)
    master = matrix.master is not None
    empty = Matrix.allocate(matrix.format, rows, columns, matrix.usages, device, master=master)
    empty.inherit(matrix)
    empty.partial = matrix.partial
    return QuantizedTensor(empty, size, dtype)


@implements(
    aten.zeros_like.default,
    aten.ones_like.default,
    aten.full_like.default,
    aten.rand_like.default,
    aten.randn_like.default,
)
def _plain_like(func, args, kwargs):
    """Plain tensors: gradients and moments are made like this."""
    tensor, *rest = args
    like = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
    return func(like, *rest, **{**kwargs, "device": kwargs.get("device") or tensor.device})


@implements(aten.clone.default)
def _clone(func, args, kwargs):
    return args[0].with_matrix(_own_rows(args[0]))


@implements(aten._to_copy.default)
def _to_copy(func, args, kwargs):
    values = bound(func, args, kwargs)
    tensor, dtype = values["self"], values["dtype"] or values["self"].dtype
    if dtype not in LOGICAL_DTYPES:
        return refuse(tensor, func, f"to {dtype} is not possible: use dequantize(), then that")
    device = values["device"] or tensor.device
    if device == tensor.device:
        return tensor.with_matrix(_own_rows(tensor), dtype)

    def move(buffer):
        return buffer.to(device, non_blocking=values["non_blocking"])

    whole = tensor._rows == tensor._matrix.rows
    matrix = tensor._matrix if whole else _own_rows(tensor)
    return tensor.with_matrix(matrix.map(move), dtype)


@implements(aten._pin_memory.default)
def _pin_memory(func, args, kwargs):
    return args[0].with_matrix(_own_rows(args[0]).map(torch.Tensor.pin_memory))


@implements(aten.is_pinned.default)
def _is_pinned(func, args, kwargs):
    return all(buffer.is_pinned() for buffer in args[0]._matrix.tensors)


@implements(aten.record_stream.default)
def _record_stream(func, args, kwargs):
    tensor, stream = args
    for buffer in tensor._matrix.tensors:
        buffer.record_stream(stream)


@implements(aten.copy_.default)
def _copy(func, args, kwargs):
    target, source = args[:2]
    if not isinstance(target, QuantizedTensor):
        return target.copy_(source.decode(torch.float32))
    if target.is_flat and target.shape == source.shape:
        matrix_like = (target._rows, target._matrix.columns)
        target.alias(matrix_like).copy_(source.view(matrix_like))
        return target
    refuse_flat(target, func)
    if not isinstance(source, QuantizedTensor):
        _write(target, source)
    elif target.format is source.format and target.shape == source.shape:
        _copy_bytes(target, source)
    else:
        _write(target, source.decode(torch.float32))
    return target


def _own_rows(tensor: QuantizedTensor) -> Matrix:
    return tensor._matrix.part(tensor._begin, tensor._rows)


def _copy_bytes(target: QuantizedTensor, source: QuantizedTensor) -> None:
    """Between tensors of one format and shape. ValueError if the source lacks a usage."""
    matrix, origin = target._matrix, source._matrix
    if matrix.master is None:
        origin.refresh()  # a stale source would bring bytes that nobody could make good
    missing = set(matrix.usages) - origin.filled
    if missing and origin.master is not None:
        _write(target, source.master)
        return
    derivable = missing == {"columnwise"} and matrix.format.columnwise_derived
    if missing and not (derivable and target._rows == matrix.rows):
        raise ValueError(
            f"{target.describe()}: copy_ from a tensor without {' and '.join(sorted(missing))} "
            "bytes, which do not follow from those it has. Quantize the source with both usages, "
            "or copy a plain tensor"
        )
    matrix.copy_rows(target._begin, origin, source._begin, source._rows)
    if missing and not matrix.stale:
        casting.derive_columnwise(matrix)


def _write(target: QuantizedTensor, value: torch.Tensor) -> None:
    value = value.to(target.device).expand(target.shape)
    if value.dtype not in LOGICAL_DTYPES:
        value = value.to(torch.float32)
    target._matrix.write(target._begin, value.reshape(target._rows, target._matrix.columns))
