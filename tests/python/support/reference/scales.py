"""Scales from amaxes: one rule for each value of `quantize.scale`.

Every division, product and minimum below is one fp32 operation, rounded to nearest, in the order of
docs/numerics.md.
"""

import numpy as np

from reference.floats import FLT_MAX, bits, from_bits
from reference.numbers import ELEMENTS, decode_e8m0

ONE = np.float32(1)
SIXTH = np.float32(1) / np.float32(6)
LEAST_QUOTIENT = np.float32(2.0**-128)
POWERS = 2.0 ** (np.arange(255.0) - 127)  # of the e8m0 codes 0 to 254


def block_scales(amax, fmt, tensor_amax=None):
    """The scales of blocks with the fp32 amaxes `amax`: (stored, E to encode, S to decode).

    `stored` is fp32 for fp32 scales, else uint8. `tensor_amax` is needed by the two-level rule.
    """
    amax = np.asarray(amax, np.float32)
    with np.errstate(all="ignore"):
        if fmt.rule == "nearest_even":
            return _two_level(amax, np.float32(tensor_amax))
        if fmt.scale == "f32":
            return _fp32(amax, fmt)
        return _e8m0(amax, fmt)


def _fp32(a, fmt):
    has_ratio = (a != 0) & ~np.isinf(a)
    if fmt.rule == "quotient":
        decode = np.where(has_ratio, np.fmax(a / fmt.element.max, LEAST_QUOTIENT), ONE)
        return decode, np.minimum(ONE / decode, FLT_MAX), decode
    encode = np.where(has_ratio, np.fmin(fmt.element.max / a, FLT_MAX), ONE)
    if fmt.rule == "rceil":
        encode = from_bits(bits(encode) & 0xFF800000)
    decode = ONE / encode
    return decode, encode, decode


def _e8m0(a, fmt):
    element = fmt.element
    if fmt.rule == "rceil":
        quotient = a / element.max
        e = np.minimum(np.searchsorted(POWERS, quotient.astype(np.float64), side="left"), 254)
    else:
        word = bits(a).astype(np.int64)
        if fmt.rule == "even":
            word += 1 << (22 - element.mantissa_bits)
        e = np.clip((word >> 23) - element.emax, 0, 254)
    stored = e.astype(np.uint8).reshape(a.shape)
    return stored, decode_e8m0(254 - stored), decode_e8m0(stored)


def tensor_factors(tensor_amax):
    """What a two-level format takes from the tensor's amax: fp32 multipliers (S_enc, S_dec)."""
    with np.errstate(all="ignore"):
        encode = np.float32(2688) / np.float32(tensor_amax)
        encode = ONE if tensor_amax == 0 or encode == 0 else np.minimum(encode, FLT_MAX)
        return encode, ONE / encode


def _two_level(a, tensor_amax):
    e4m3 = ELEMENTS["e4m3"]
    tensor_encode, tensor_decode = tensor_factors(tensor_amax)
    stored = e4m3.encode(np.minimum(a * (tensor_encode * SIXTH), FLT_MAX))
    scale = e4m3.decode(stored)
    encode = np.minimum(ONE / (scale * tensor_decode), FLT_MAX)
    return stored, encode, decoded_two_level(stored, tensor_amax)


def decoded_two_level(stored, tensor_amax):
    """The multiplier of decoding of stored e4m3 block scales under a tensor amax."""
    with np.errstate(all="ignore"):
        return (ELEMENTS["e4m3"].decode(stored) * np.float32(tensor_amax)) * (
            ONE / np.float32(2688)
        )
