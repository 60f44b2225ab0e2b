"""docs/numerics.md, "Values in bfloat16": masters in 24 bits, and those rounded by chance."""

import numpy as np

from reference.floats import bits, from_bits
from reference.philox import random_words


def _quiet(x, value):
    """A NaN stays one."""
    return np.where(np.isnan(x), np.float32(np.nan), from_bits(value.astype(np.uint32) << 16))


def split(x):
    """Of fp32 values the bf16 values, as fp32, and their residuals, int8."""
    u = bits(x).astype(np.int64)
    sign, magnitude = u & 0x80000000, u & 0x7FFFFFFF
    whole, rest = magnitude >> 8, magnitude & 0xFF
    whole = whole + ((rest > 0x80) | ((rest == 0x80) & (whole % 2 == 1)))  # ties to even
    value = (whole + 0x80) >> 8  # ties away from zero
    residual = np.where(np.isnan(x), 0, whole - (value << 8))
    return _quiet(x, (sign >> 16) | value), residual.astype(np.int8)


def join(value, residual):
    """The fp32 values that both are of."""
    u = bits(value).astype(np.int64)
    magnitude = (u & 0x7FFFFFFF) + residual.astype(np.int64) * 256
    joined = from_bits(((u & 0x80000000) | np.maximum(magnitude, 0)).astype(np.uint32))
    return np.where(np.isnan(value), value, joined)


def draw(x, seed, step, first=0):
    """The bf16 values, as fp32, of an array whose first element is the tensor's number `first`."""
    index = np.arange(np.size(x)).reshape(np.shape(x)) + first
    words = random_words(seed, step | 1 << 63, index)
    u = bits(x).astype(np.int64)
    return _quiet(x, (u >> 16) + ((words >> np.uint32(16)) < (u & 0xFFFF)))
