"""nc.quantize: a QuantizedTensor from a plain tensor."""

from __future__ import annotations

import torch

from narrowcast import casting, registry
from narrowcast.box import matrix_shape
from narrowcast.matrix import Matrix
from narrowcast.tensor import LOGICAL_DTYPES, QuantizedTensor


def quantize(
    x: torch.Tensor,
    format: str | registry.Format,
    rowwise: bool = True,
    columnwise: bool = True,
    source: str = "master",
    rounding: str = "nearest",
    seed: int = 0,
    step: int = 0,
    offset: int = 0,
) -> QuantizedTensor:
    """Quantizes a tensor.

    x         float32, bfloat16 or float16, on a CPU or CUDA device, of any shape: a matrix of
              prod(shape[:-1]) rows and shape[-1] columns. A tensor that is not contiguous is made
              so first. NaN takes the element type's NaN code (or its largest value) and counts for
              no amax; infinities saturate. Formulas: docs/numerics.md
    format    a name (nc.formats()) or nc.format(name)
    rowwise, columnwise
              which usages are made; at least one. A derived columnwise may be asked for alone
    source    "master", or "bf16" to round the value to bfloat16 before its amax and its cast are
              taken
    rounding  "nearest"; "stochastic" (with seed, step, and offset, the index of x's first element
              in its whole tensor) is not there yet

    Returns a tensor of x's shape and dtype that keeps no high-precision value. It is detached from
    x. Raises TypeError for another kind of x, ValueError for a wrong option or a shape that the
    format cannot hold, NotImplementedError for stochastic rounding.
    """
    format = registry.format(format)
    check_value(x)
    usages = [
        usage for usage, wanted in (("rowwise", rowwise), ("columnwise", columnwise)) if wanted
    ]
    if not usages:
        raise ValueError("quantize with rowwise=False and columnwise=False would make nothing")
    if source not in ("master", "bf16"):
        raise ValueError(f'source is "master" or "bf16", not {source!r}')
    check_rounding(rounding)
    rows, columns = matrix_shape(x.shape)
    matrix = Matrix.allocate(format, rows, columns, usages, x.device)
    casting.cast_value(matrix, x.detach().reshape(rows, columns), source_bf16=source == "bf16")
    return QuantizedTensor(matrix, x.shape, x.dtype)


def check_value(x) -> None:
    """TypeError unless x is a plain float tensor."""
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"quantize takes a torch.Tensor, not {type(x).__name__}")
    if isinstance(x, QuantizedTensor):
        raise TypeError(
            f"the tensor is quantized already ({x.format.name}): quantize(x.dequantize(), ...) "
            "for another format"
        )
    if x.dtype not in LOGICAL_DTYPES or x.layout != torch.strided:
        raise TypeError(
            f"quantize takes a dense tensor of float32, bfloat16 or float16, not {x.dtype}, "
            f"{x.layout}"
        )


def check_rounding(rounding: str) -> None:
    if rounding == "stochastic":
        raise NotImplementedError(
            "stochastic rounding is not there yet: the kernels round to nearest only"
        )
    if rounding != "nearest":
        raise ValueError(f'rounding is "nearest" or "stochastic", not {rounding!r}')
