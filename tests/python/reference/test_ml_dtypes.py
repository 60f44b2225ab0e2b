"""The reference's number types against ml_dtypes, which other hands wrote."""

import numpy as np
import pytest

import reference
from reference.floats import bits, from_bits
from reference.numbers import decode_e8m0

ml_dtypes = pytest.importorskip("ml_dtypes")
INF = np.float32(np.inf)
ML_DTYPES = {
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e2m1": ml_dtypes.float4_e2m1fn,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e3m2": ml_dtypes.float6_e3m2fn,
}


@pytest.mark.parametrize("name", ML_DTYPES)
def test_codes_decode_as_in_ml_dtypes(name):
    element = reference.ELEMENTS[name]
    codes = np.arange(1 << element.bits, dtype=np.uint8)
    assert reference.same_bits(
        element.decode(codes), codes.view(ML_DTYPES[name]).astype(np.float32)
    )


@pytest.mark.parametrize("name", ML_DTYPES)
def test_encoding_is_that_of_ml_dtypes_in_range(name):
    element = reference.ELEMENTS[name]
    every_bf16 = from_bits(np.arange(1 << 16, dtype=np.uint32) << 16)
    middles = ((element.magnitudes[1:] + element.magnitudes[:-1]) / 2).astype(np.float32)
    ties = np.concatenate(
        [middles, np.nextafter(middles, INF), np.nextafter(middles, np.float32(0))]
    )
    random = from_bits(np.random.default_rng(1).integers(0, 1 << 32, 1_000_000, dtype=np.uint32))
    x = np.concatenate([every_bf16, ties, -ties, random])
    x = x[
        np.abs(x) <= element.max
    ]  # beyond it ml_dtypes does not saturate; NaN is another rule too
    assert np.array_equal(element.encode(x), x.astype(ML_DTYPES[name]).view(np.uint8))


def test_e8m0():
    codes = np.arange(256, dtype=np.uint8)
    assert bits(decode_e8m0(codes))[0] == 0x00400000
    assert reference.same_bits(
        decode_e8m0(codes), codes.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    )


def test_bf16_rounding_is_that_of_ml_dtypes():
    x = from_bits(np.random.default_rng(2).integers(0, 1 << 32, 1_000_000, dtype=np.uint32))
    with np.errstate(invalid="ignore"):
        expected = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    assert reference.same_bits(reference.round_to_bf16(x), expected)
