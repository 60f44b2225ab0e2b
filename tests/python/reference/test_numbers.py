"""The reference's number types and scales, of one level and of two, against the values and tables
of docs/numerics.md.
"""

import numpy as np
import pytest

import facts
import reference
from facts import FORMATS
from reference.floats import FLT_MAX, bits, from_bits
from reference.formats import format_from
from reference.numbers import element_of
from reference.scales import block_scales

INF, NAN = np.float32(np.inf), np.float32(np.nan)


def f32(*values):
    return np.array(values, np.float32)


# Section 2: number types


@pytest.mark.parametrize(
    ("name", "largest", "smallest_normal", "smallest", "nan", "inf"),
    [
        ("e4m3", 448, 2**-6, 2**-9, 0x7F, 0x7E),
        ("e5m2", 57344, 2**-14, 2**-16, 0x7F, 0x7B),
        ("e2m1", 6, 1, 0.5, 0x7, 0x7),
        ("e2m3", 7.5, 1, 0.125, 0x1F, 0x1F),
        ("e3m2", 28, 0.25, 0.0625, 0x1F, 0x1F),
        ("int8", 127, 1, 1, 127, 127),
    ],
)
def test_element_table(name, largest, smallest_normal, smallest, nan, inf):
    element = reference.ELEMENTS[name]
    assert element.max == largest
    assert element.magnitudes[1] == smallest
    if name != "int8":
        assert element.values[1 << element.mantissa_bits] == smallest_normal
    negative = 0x81 if name == "int8" else inf | 1 << (element.bits - 1)
    special = f32(NAN, -NAN, INF, -INF, FLT_MAX, -FLT_MAX)
    assert element.encode(special).tolist() == [nan, nan, inf, negative, inf, negative]
    assert element.encode(f32(0, -0.0)).tolist() == [
        0,
        0 if name == "int8" else 1 << (element.bits - 1),
    ]


def test_int8_is_a_64th_beside_an_e8m0_scale():
    element = element_of("int8", "e8m0")
    assert element.max == 1.984375
    assert element.emax == 0
    assert element.encode(f32(1.984375, -1.984375, -5, 1 / 128, 3 / 128)).tolist() == [
        127,
        0x81,
        0x81,
        0,
        2,
    ]


def test_e2m1_list():
    assert reference.ELEMENTS["e2m1"].magnitudes.tolist() == [0, 0.5, 1, 1.5, 2, 3, 4, 6]


# Section 3: scales


def rule(element, scale_rule, scale="e8m0"):
    tables = facts.spec("mxfp8_e4m3") | {"element": {"type": element}, "scale": {"type": scale}}
    return format_from(tables | {"quantize": {"scale": scale_rule}})


AMAXES = f32(
    0,
    2**-149,
    2**-127,
    1e-30,
    1,
    1.75,
    1.9921875,
    6,
    7,
    7.5,
    448,
    np.nextafter(f32(448), INF)[0],
    FLT_MAX,
    INF,
)


@pytest.mark.parametrize(
    ("element", "scale_rule", "expected"),
    [
        ("e4m3", "rceil", [0, 0, 0, 19, 119, 119, 120, 121, 121, 122, 127, 128, 247, 254]),
        ("e5m2", "rceil", [0, 0, 0, 12, 112, 112, 113, 114, 114, 115, 120, 121, 240, 254]),
        ("e2m3", "rceil", [0, 0, 0, 25, 125, 125, 126, 127, 127, 127, 133, 133, 253, 254]),
        ("e3m2", "rceil", [0, 0, 0, 23, 123, 123, 124, 125, 125, 126, 131, 132, 251, 254]),
        ("e2m1", "even", [0, 0, 0, 25, 125, 126, 126, 127, 128, 128, 134, 134, 253, 253]),
        ("e2m1", "floor", [0, 0, 0, 25, 125, 125, 125, 127, 127, 127, 133, 133, 252, 253]),
        ("e2m1", "rceil", [0, 0, 0, 25, 125, 126, 126, 127, 128, 128, 134, 134, 253, 254]),
        ("int8", "floor", [0, 0, 0, 27, 127, 127, 127, 129, 129, 129, 135, 135, 254, 254]),
    ],
)
def test_golden_e8m0_scales(element, scale_rule, expected):
    stored, encode, decode = block_scales(AMAXES, rule(element, scale_rule))
    assert stored.tolist() == expected
    e = np.array(expected)
    assert reference.same_bits(encode, (2.0 ** (127 - e)).astype(np.float32))
    assert reference.same_bits(decode, (2.0 ** (e - 127)).astype(np.float32))


def test_rceil_bit_rule_equals_the_definition():
    element = reference.ELEMENTS["e4m3"]
    a = from_bits(np.random.default_rng(3).integers(0, 0x7F800000, 1_000_000, dtype=np.uint32))
    u = bits(a / element.max).astype(np.int64)
    e = u >> 23
    e += np.where(e == 0, (u & 0x7FFFFF) > 0x400000, (u & 0x7FFFFF) != 0)
    assert np.array_equal(block_scales(a, rule("e4m3", "rceil"))[0], np.minimum(e, 254))


def test_fp32_scales_case_by_case():
    a = f32(0, INF, 1e-37, 2**-140, FLT_MAX)
    stored, encode, _ = block_scales(a, rule("e4m3", "exact", "f32"))
    assert encode[:4].tolist() == [1, 1, FLT_MAX, FLT_MAX]
    assert stored[:2].tolist() == [1, 1]
    assert stored[2] == pytest.approx(2.9387e-39, rel=1e-4)
    assert encode[4] == pytest.approx(1.3166e-36, rel=1e-4)
    stored, encode, _ = block_scales(a, rule("e4m3", "rceil", "f32"))
    assert encode.tolist() == [1, 1, 2.0**127, 2.0**127, 2.0**-120]
    assert stored.tolist() == [1, 1, 2.0**-127, 2.0**-127, 2.0**120]


def test_exact_misses_the_amax_by_an_ulp_in_28_percent():
    a = np.abs(np.random.default_rng(4).normal(size=200_000)).astype(np.float32)
    stored, _, _ = block_scales(a, rule("e4m3", "exact", "f32"))
    back = np.float32(448) * stored
    ulps = np.abs(bits(back).astype(np.int64) - bits(a).astype(np.int64))
    assert ulps.max() == 1
    assert (ulps == 1).mean() == pytest.approx(0.28, abs=0.02)


def test_quotients_case_by_case():
    least = 2.0**-128
    a = f32(0, INF, 2**-149, 1e-37, 448 * least, 448 * (least + 2.0**-149), 3, 448, FLT_MAX)
    stored, encode, decode = block_scales(a, rule("e4m3", "quotient", "f32"))
    assert reference.same_bits(stored, decode)
    assert stored[:6].tolist() == [1, 1, least, least, least, least + 2.0**-149]
    assert encode[:5].tolist() == [1, 1, FLT_MAX, FLT_MAX, FLT_MAX]
    assert encode[5] < FLT_MAX
    assert bits(stored[6]) == 0x3BDB6DB7  # 3 / 448
    assert stored[7:].tolist() == [1, FLT_MAX / np.float32(448)]
    assert reference.same_bits(encode[5:], np.float32(1) / stored[5:])


@pytest.mark.parametrize("name", ["e4m3", "e5m2", "e2m1", "e2m3", "e3m2", "int8"])
def test_quotients_come_back_from_what_they_decode_to(name):
    fmt = rule(name, "quotient", "f32")
    most = element_of(name, "f32").max
    significands = np.arange(0, 1 << 23, 7, dtype=np.uint32)
    for exponent in (1, 64, 127, 190, 253):  # of amaxes: every seventh float of a binade
        stored, encode, _ = block_scales(from_bits(significands | exponent << 23), fmt)
        again, encode_again, _ = block_scales(np.float32(most) * stored, fmt)
        assert reference.same_bits(stored, again)
        assert reference.same_bits(encode, encode_again)


def test_which_scales_are_no_quotients():
    """Neighbouring scales have fewer products with 448 than they are: one of eight has that of
    another.
    """
    fmt = rule("e4m3", "quotient", "f32")
    scales = from_bits(np.arange(0, 1 << 23, 7, dtype=np.uint32) | 127 << 23)
    stored, _, _ = block_scales(np.float32(448) * scales, fmt)
    last, moved = bits(scales) % 8, bits(stored).astype(np.int64) - bits(scales)
    assert set(moved) == {-1, 0, 1}
    assert np.array_equal(moved != 0, (last == 4) & (scales >= np.float32(8 / 7)))
    kept, _, _ = block_scales(np.float32(448) * stored, fmt)
    assert reference.same_bits(kept, stored)


def test_codes_come_back_under_their_quotients():
    """Blocks of every code of e4m3 under 500,000 scales, drawn from all that are quotients."""
    fmt = rule("e4m3", "quotient", "f32")
    a = from_bits(np.random.default_rng(5).integers(1, 0x7F800000, 500_000, dtype=np.uint32))
    stored, _, _ = block_scales(np.append(a, f32(2**-149, FLT_MAX)), fmt)
    again, encode, _ = block_scales(np.float32(448) * stored, fmt)
    assert reference.same_bits(stored, again)
    for code in range(0x7F):
        value = fmt.element.decode(np.uint8(code)) * stored
        assert (fmt.element.encode(value * encode) == code).all()


# Section 4: two levels


def test_nvfp4_example():
    x = np.zeros((1, 32), np.float32)
    x[0, :6] = [1, -0.5, 0.3, 3, -6, 0.1]
    x[0, 16:20] = [0.01, -0.02, 0.015, 0.005]
    q = reference.quantize(x, FORMATS["nvfp4_1d"], columnwise=False)
    assert q.tensor_amax.tolist() == [6]
    assert q.rowwise_scale_inv[0].tolist() == [0x7E, 0x3C, 0, 0]
    assert q.rowwise_data[0].tolist() == [
        0x92,
        0x51,
        0x0F,
        0,
        0,
        0,
        0,
        0,
        0xF5,
        0x36,
        0,
        0,
        0,
        0,
        0,
        0,
    ]
    encode = block_scales(f32(6, 0.02), FORMATS["nvfp4_1d"], 6)[1]
    assert encode[0] == 1
    assert encode[1] == pytest.approx(298.66666, rel=1e-7)


def test_nvfp4_corners():
    nvfp4 = FORMATS["nvfp4_1d"]
    stored, encode, _ = block_scales(f32(0, 1e-7), nvfp4, 1)
    assert stored.tolist() == [0, 0]
    assert encode.tolist() == [FLT_MAX, FLT_MAX]
    stored, encode, _ = block_scales(f32(INF), nvfp4, INF)
    assert stored.tolist() == [0x7E]
    assert encode[0] == np.float32(1) / np.float32(448)
    assert reference.tensor_factors(0)[0] == 1
    assert reference.tensor_factors(1e-36)[0] == FLT_MAX
    for amax, expected in [(1e-36, 1e-36 / 8), (1e-40, 0)]:
        x = np.full((1, 16), amax, np.float32)
        value = reference.dequantize(reference.quantize(x, nvfp4, columnwise=False), nvfp4, x.shape)
        assert value == pytest.approx(np.full(x.shape, expected), rel=0.05)
