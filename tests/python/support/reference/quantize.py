"""Quantize, dequantize, and columnwise from rowwise: values to buffers and back."""

from dataclasses import dataclass

import numpy as np

from reference.floats import round_to_bf16
from reference.layout import block_grid, pack, spread, store_scales, stored_blocks, unpack
from reference.numbers import ELEMENTS, decode_e8m0
from reference.philox import random_words
from reference.scales import block_scales, decoded_two_level


@dataclass
class Quantized:
    """The buffers of a matrix, as uint8 or fp32; None where absent. tensor_amax: fp32, (1,)."""

    rowwise_data: np.ndarray | None = None
    rowwise_scale_inv: np.ndarray | None = None
    columnwise_data: np.ndarray | None = None
    columnwise_scale_inv: np.ndarray | None = None
    tensor_amax: np.ndarray | None = None


def magnitudes(x):
    """|x|, a NaN counting as 0: what every amax is taken of."""
    return np.where(np.isnan(x), np.float32(0), np.abs(x))


def amax_of(x, block=None):
    """The largest magnitude of each block of a matrix, or of the whole."""
    magnitude = magnitudes(x)
    if block is None:
        return magnitude.max(initial=np.float32(0)).reshape(1, 1)
    rows, columns = block_grid(x.shape, block)
    padded = np.zeros((rows * block[0], columns * block[1]), np.float32)
    padded[: x.shape[0], : x.shape[1]] = magnitude
    return padded.reshape(rows, block[0], columns, block[1]).max(axis=(1, 3), initial=np.float32(0))


def quantize(
    x,
    fmt,
    *,
    rowwise=True,
    columnwise=True,
    source="master",
    rounding="nearest",
    seed=0,
    step=0,
    offset=0,
    tensor_amax=None,
    tensor_multiplier=None,
):
    """fp32 values, [rows, columns], in a format. `tensor_amax`: of the whole, where x is a part.
    `tensor_multiplier`: what one scale for the tensor encodes with, where it is not of this amax.
    """
    x = np.asarray(x, np.float32)
    if source == "bf16":
        x = round_to_bf16(x)
    tensor = amax_of(x)[0, 0] if tensor_amax is None else np.float32(tensor_amax)
    out = Quantized(tensor_amax=np.array([tensor], np.float32) if fmt.spans_tensor else None)
    for name in ("rowwise", "columnwise"):
        if not (rowwise if name == "rowwise" else columnwise):
            continue
        usage = getattr(fmt, name)
        amax = (
            np.full((1, 1), tensor, np.float32) if usage.block is None else amax_of(x, usage.block)
        )
        if tensor_multiplier is None:
            stored, encode, _ = block_scales(amax, fmt, tensor)
        else:
            encode = np.full((1, 1), tensor_multiplier, np.float32)
            stored = 1 / encode
            if fmt.scale == "e8m0":
                stored = (254 - (encode.view(np.uint32) >> 23)).astype(np.uint8)
        with np.errstate(all="ignore"):
            y = x * spread(encode, usage.block, x.shape)
        if rounding == "stochastic":
            index = np.uint64(offset) + np.arange(x.size, dtype=np.uint64).reshape(x.shape)
            codes = fmt.element.encode_stochastic(y, random_words(seed, step, index))
        else:
            codes = fmt.element.encode(y)
        setattr(out, f"{name}_data", pack(codes, usage, fmt))
        setattr(out, f"{name}_scale_inv", store_scales(stored, usage, x.shape))
    return out


def dequantize(q, fmt, shape, usage="rowwise"):
    """The fp32 values of one usage, in the logical orientation, shape [rows, columns]."""
    facts = getattr(fmt, usage)
    codes = unpack(getattr(q, f"{usage}_data"), facts, fmt, shape)
    stored = stored_blocks(getattr(q, f"{usage}_scale_inv"), facts, shape)
    if fmt.tensor_scale is not None:
        scales = decoded_two_level(stored, q.tensor_amax[0])
    elif fmt.scale == "f32":
        scales = stored
    else:
        scales = decode_e8m0(stored) if fmt.scale == "e8m0" else ELEMENTS[fmt.scale].decode(stored)
    with np.errstate(all="ignore"):
        return fmt.element.decode(codes) * spread(scales, facts.block, shape)


def derive_columnwise(q, fmt, shape):
    """Columnwise (data, scales) from the rowwise bytes, for formats with one block for both."""
    codes = unpack(q.rowwise_data, fmt.rowwise, fmt, shape)
    stored = stored_blocks(q.rowwise_scale_inv, fmt.rowwise, shape)
    return pack(codes, fmt.columnwise, fmt), store_scales(stored, fmt.columnwise, shape)
