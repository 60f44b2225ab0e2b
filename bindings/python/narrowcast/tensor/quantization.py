"""nc.quantize: a QuantizedTensor from a plain tensor."""

import itertools
import numbers

import torch

from narrowcast import registry
from narrowcast.tensor import LOGICAL_DTYPES, QuantizedTensor, buffers, casting, compiling
from narrowcast.tensor.casting import RngKey
from narrowcast.tensor.region import matrix_shape
from narrowcast.tensor.store import Store


def quantize(
    x: torch.Tensor,
    format: str | registry.Format,
    *,
    rowwise: bool = True,
    columnwise: bool = True,
    source: str = "master",
    rounding: str = "nearest",
    seed: int = 0,
    step: int = 0,
    offset: int = 0,
) -> QuantizedTensor:
    """Quantizes a tensor: bytes alone, without a value beside them.

    x         float32, bfloat16 or float16, on a CPU or CUDA device, of any shape. It is taken as a
              matrix of prod(shape[:-1]) rows and shape[-1] columns. NaN gets the element type's NaN
              code, or its largest value, and does not count in an amax. Infinities saturate.
              Formulas: docs/numerics.md
    format    a name (nc.formats()) or nc.format(name)
    rowwise, columnwise
              which usages are made, at least one; derived columnwise bytes may be made alone
    source    "master", or "bf16" to round the value to bfloat16 before its amax and its cast
    rounding  "nearest" or "stochastic". A stochastic code is the upper of an element's two
              neighbours with the probability of its place between them, and a function of seed,
              step and the element's row-major index. Scales are never stochastic
    seed, step, offset
              integers from 0 to 2^64 - 1 for stochastic rounding. `offset` is the index of x's
              first element in the whole tensor, so that a part gets the codes of the whole

    Returns a nc.QuantizedTensor of x's shape and dtype, on its device, detached from x. TypeError
    for another kind of x; ValueError for a wrong option or a shape that the format cannot hold.
    """
    format = registry.format(format)
    check_value(x)
    compiling.check_write("the result of nc.quantize")
    usages = list(itertools.compress(registry.USAGES, (rowwise, columnwise)))
    if not usages:
        raise ValueError("quantize with rowwise=False and columnwise=False would make nothing")
    check_source(source)
    check_rounding(rounding)
    for name, value in (("seed", seed), ("step", step), ("offset", offset)):
        check_word(name, value)
    rng_key = RngKey(int(seed), int(step), int(offset)) if rounding == "stochastic" else None
    rows, columns = matrix_shape(x.shape)
    bytes = buffers.allocate(format, rows, columns, usages, x.device)
    value = x.detach().reshape(rows, columns)
    value = getattr(value, "value", value)  # of a weight that is its own master
    casting.cast_value(bytes, value, source == "bf16", rng_key)
    return QuantizedTensor(Store(bytes), x.shape, x.dtype)


def check_value(x) -> None:
    """TypeError unless x is a dense float tensor."""
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"quantize takes a torch.Tensor, not {type(x).__name__}")
    if isinstance(x, QuantizedTensor):
        raise TypeError(f"the tensor is quantized already ({x.format.name}): dequantize() it first")
    if x.dtype not in LOGICAL_DTYPES or x.layout != torch.strided:
        raise TypeError(
            f"quantize takes a dense tensor of float32, bfloat16 or float16, not {x.dtype}, "
            f"{x.layout}"
        )


def check_source(source: str) -> None:
    """ValueError unless it is one of the two."""
    if source not in ("master", "bf16"):
        raise ValueError(f'source is "master" or "bf16", not {source!r}')


def check_rounding(rounding: str) -> None:
    """ValueError unless it is one of the two."""
    if rounding not in ("nearest", "stochastic"):
        raise ValueError(f'rounding is "nearest" or "stochastic", not {rounding!r}')


def check_word(name: str, value: int) -> None:
    """TypeError or ValueError unless a value is an integer of 64 bits, Python's or numpy's."""
    if not isinstance(value, numbers.Integral) or isinstance(value, bool):
        raise TypeError(f"{name} is an int, not {type(value).__name__}")
    if not 0 <= value < 2**64:
        raise ValueError(f"{name} is from 0 to 2^64 - 1, not {value}")
