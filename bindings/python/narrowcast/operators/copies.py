"""Copies and new tensors: the bytes as they are in other memory, or zeros."""

from __future__ import annotations

import math

import torch

from narrowcast import spanning
from narrowcast.box import matrix_shape
from narrowcast.dispatch import implements
from narrowcast.matrix import Matrix
from narrowcast.operators import table
from narrowcast.operators.common import bound, refuse
from narrowcast.pieces import copy_box, with_columnwise, zeros_like
from narrowcast.tensor import LOGICAL_DTYPES, QuantizedTensor


@implements(*table.NEW_ZEROS.operators)
def _new_zeros(func, args, kwargs):
    values = bound(func, args, kwargs)
    tensor, size = values["self"], tuple(values["size"])
    device, dtype = values["device"] or tensor.device, values["dtype"] or tensor.dtype
    if dtype not in LOGICAL_DTYPES:
        return torch.zeros(size, dtype=dtype, device=device)
    return QuantizedTensor(zeros_like(tensor._matrix, *matrix_shape(size), device), size, dtype)


@implements(*table.NEW_EMPTY.operators)
def _empty(func, args, kwargs):
    values = bound(func, args, kwargs)
    tensor, matrix = values["self"], values["self"]._matrix
    size = tuple(values.get("size", tensor.shape))
    rows, columns = matrix_shape(size)
    if tensor.is_flat and "size" not in values:
        rows, columns = tensor._view.box.shape
    elif math.prod(size) == 0:  # FSDP2 asks for new_empty(0), which no packed format could hold
        rows, columns = 0, matrix.columns
    device, dtype = values["device"] or tensor.device, values["dtype"] or tensor.dtype
    if dtype not in LOGICAL_DTYPES:
        return torch.empty(size, dtype=dtype, device=device)
    usages = [tensor._view.own_usage(usage) for usage in matrix.usages]
    master = matrix.master is not None
    empty = Matrix.allocate(matrix.format, rows, columns, usages, device, master=master)
    empty.inherit(matrix)
    empty.partial = matrix.partial
    return QuantizedTensor(empty, size, dtype)


@implements(*table.PLAIN_LIKE.operators)
def _plain_like(func, args, kwargs):
    """Plain tensors: gradients and moments are made like this."""
    tensor, *rest = args
    like = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
    return func(like, *rest, **{**kwargs, "device": kwargs.get("device") or tensor.device})


@implements(*table.CLONE.operators)
def _clone(func, args, kwargs):
    return args[0].with_matrix(args[0]._view.own_matrix())


@implements(*table.TO.operators)
def _to_copy(func, args, kwargs):
    values = bound(func, args, kwargs)
    tensor, dtype = values["self"], values["dtype"] or values["self"].dtype
    if dtype not in LOGICAL_DTYPES:
        return refuse(tensor, func, f"to {dtype} is not possible: use dequantize(), then that")
    device = values["device"] or tensor.device
    if device == tensor.device:
        return tensor.with_matrix(tensor._view.own_matrix(), dtype)

    def move(buffer):
        return buffer.to(device, non_blocking=values["non_blocking"])

    matrix = tensor._matrix if tensor._view.is_whole else tensor._view.own_matrix()
    return tensor.with_matrix(matrix.map(move), dtype)


@implements(*table.PIN.operators)
def _pin_memory(func, args, kwargs):
    return args[0].with_matrix(args[0]._view.own_matrix().map(torch.Tensor.pin_memory))


@implements(*table.COPY.operators)
def _copy(func, args, kwargs):
    target, source = args[:2]
    if not isinstance(target, QuantizedTensor):
        return target.copy_(source.decode(torch.float32), *args[2:])
    if not isinstance(source, QuantizedTensor):
        _write(target, source)
    elif target._view == source._view and target.shape == source.shape:
        pass  # set_state_dict, after a load into the weight's own state dict
    elif target.format is source.format and _alike(target, source):
        _copy_bytes(target, source)
    else:
        _write(target, source.decode(torch.float32))
    return target


def _alike(target: QuantizedTensor, source: QuantizedTensor) -> bool:
    """Of one shape, as matrices too: flat views forget theirs."""
    return (
        target.shape == source.shape
        and target.is_flat == source.is_flat
        and (not target.is_flat or target._view.box.shape == source._view.box.shape)
    )


def _copy_bytes(target: QuantizedTensor, source: QuantizedTensor) -> None:
    """Between tensors of one format and shape. ValueError if the source lacks a usage."""
    matrix, target_box, exchanged = target._view
    origin, box = source._view.placed(exchanged)
    if matrix.master is None:
        origin.refresh()  # a stale source would bring bytes that nobody could make good
    missing = set(matrix.usages) - origin.filled
    if spanning.is_used_beside(matrix, target_box) and (
        matrix.master is not None or not spanning.have_one_scale(matrix, origin)
    ):
        # Bytes under another scale of the tensor would change what lies beside them.
        matrix.write(target_box, origin.high_precision(box))
        return
    if missing and origin.master is not None:
        matrix.write(target_box, box.of(origin.master))
        return
    if missing == {"columnwise"} and matrix.format.columnwise_derived:
        origin = with_columnwise(origin, box)
        box = origin.whole
    elif missing:
        raise ValueError(
            f"{target.describe()}: copy_ from a tensor without {' and '.join(sorted(missing))} "
            "bytes, which do not follow from those it has. Quantize the source with both usages, "
            "or copy a plain tensor"
        )
    copy_box(matrix, target_box, origin, box)


def _write(target: QuantizedTensor, value: torch.Tensor) -> None:
    try:
        value = value.to(target.device).expand(target.shape)
    except RuntimeError:
        raise ValueError(
            f"{target.describe()}: copy_ of a tensor of shape {tuple(value.shape)} into one of "
            f"shape {tuple(target.shape)}: the shapes must be equal, or broadcast to the target's"
        ) from None
    target.write(value if value.dtype in LOGICAL_DTYPES else value.to(torch.float32))
