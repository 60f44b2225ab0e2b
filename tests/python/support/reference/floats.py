"""fp32 and bf16 in numpy: bits, rounding, comparison."""

import numpy as np

FLT_MAX = np.float32(np.finfo(np.float32).max)


def bits(x):
    """The 32 bits of each fp32 value, as uint32."""
    return np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)


def from_bits(u):
    """The fp32 values of 32-bit words."""
    return np.ascontiguousarray(u, dtype=np.uint32).view(np.float32)


def round_to_bf16(x):
    """fp32 rounded to the nearest bf16, ties to even, as fp32. A NaN stays a NaN."""
    u = bits(x).astype(np.uint64)
    rounded = (u + 0x7FFF + ((u >> 16) & 1)) & 0xFFFF0000
    return np.where(np.isnan(x), np.float32(np.nan), from_bits(rounded.astype(np.uint32)))


def same_bits(a, b):
    """Whether two fp32 arrays are equal bit for bit, any NaN being equal to any NaN."""
    a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
    return a.shape == b.shape and bool(np.all((bits(a) == bits(b)) | (np.isnan(a) & np.isnan(b))))
