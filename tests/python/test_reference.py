"""The reference against the values and tables of docs/numerics.md."""

from pathlib import Path

import numpy as np
import pytest

import facts
import reference
from reference.floats import FLT_MAX, bits, from_bits
from reference.formats import format_from
from reference.layout import block_grid
from reference.numbers import element_of
from reference.scales import block_scales

ROOT = Path(__file__).parents[2]
SPECS = sorted(ROOT.glob("spec/*.toml"))
FORMATS = {name: format_from(facts.spec(name)) for name in facts.NAMES}
INF, NAN = np.float32(np.inf), np.float32(np.nan)


def f32(*values):
    return np.array(values, np.float32)


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_spec_files_state_the_facts_of_the_table(path):
    if path.stem not in FORMATS:
        pytest.skip("not one of the fifteen formats of the table")
    assert reference.load_format(path) == FORMATS[path.stem]


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


# Section 4: two levels


def test_nvfp4_example():
    x = np.zeros((1, 32), np.float32)
    x[0, :6] = [1, -0.5, 0.3, 3, -6, 0.1]
    x[0, 16:20] = [0.01, -0.02, 0.015, 0.005]
    q = reference.quantize(x, FORMATS["nvfp4_1d"], columnwise=False)
    assert q.amax.tolist() == [6]
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


# Section 5: layout


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fp8_e4m3", [(300, 520), (1,), (520, 300), (1,)]),
        ("mxfp8_e4m3", [(300, 520), (384, 20), (300, 520), (12, 640)]),
        ("mxfp8_2d", [(300, 520), (384, 20), (300, 520), (12, 640)]),
        ("mxint8", [(300, 520), (384, 20), (300, 520), (12, 640)]),
        ("nvfp4", [(300, 260), (384, 36), (520, 150), (640, 20)]),
        ("nvfp4_1d", [(300, 260), (384, 36), (520, 150), (640, 20)]),
        ("mxfp4", [(300, 260), (384, 20), (520, 150), (640, 12)]),
        ("mxfp6_e2m3", [(300, 390), (384, 20), (520, 225), (640, 12)]),
        ("fp8_block128", [(300, 520), (3, 8), (520, 300), (5, 4)]),
        ("fp8_block1x128", [(300, 520), (5, 300), (520, 300), (3, 520)]),
        ("int8_block32", [(300, 520), (10, 17), (520, 300), (17, 10)]),
    ],
)
def test_stored_shapes(name, expected):
    q = reference.quantize(np.zeros((300, 520), np.float32), FORMATS[name])
    assert [
        b.shape
        for b in (q.rowwise_data, q.rowwise_scale_inv, q.columnwise_data, q.columnwise_scale_inv)
    ] == expected


@pytest.mark.parametrize("name", FORMATS)
def test_every_element_and_scale_lies_where_the_formula_says(name):
    fmt, shape = FORMATS[name], (36, 52)
    x = (np.random.default_rng(5).normal(size=shape) * 2.0 ** (np.arange(52) % 20)).astype(
        np.float32
    )
    q = reference.quantize(x, fmt)
    for usage in ("rowwise", "columnwise"):
        facts_of, b = getattr(fmt, usage), fmt.stored_bits
        data, scales = getattr(q, f"{usage}_data"), getattr(q, f"{usage}_scale_inv")
        word = int.from_bytes(data.tobytes(), "little")
        length = shape[0] if facts_of.transposed else shape[1]
        amaxes = reference.amax_of(x, facts_of.block)
        stored, encode, _ = block_scales(amaxes, fmt, amaxes.max())
        for r, c in [
            (0, 0),
            (0, 1),
            (1, 0),
            (5, 7),
            (16, 33),
            (31, 31),
            (32, 32),
            (33, 50),
            (35, 51),
        ]:
            block = (
                (0, 0)
                if facts_of.block is None
                else (r // facts_of.block[0], c // facts_of.block[1])
            )
            i, j = (c, r) if facts_of.transposed else (r, c)
            code = word >> (i * length + j) * b & (1 << b) - 1
            assert code == fmt.element.encode(x[r : r + 1, c] * encode[block])[0]
            if facts_of.block is None:
                assert scales[0] == stored[0, 0]
            else:
                i, j = r // facts_of.per[0], c // facts_of.per[1]
                assert scales[(j, i) if facts_of.scale_transposed else (i, j)] == stored[block]


def test_padding_is_zero():
    x = np.ones((33, 52), np.float32)
    q = reference.quantize(x, FORMATS["mxfp8_e4m3"])
    assert np.count_nonzero(q.rowwise_scale_inv) == 33 * 2
    assert np.count_nonzero(q.columnwise_scale_inv) == 2 * 52


def test_six_bit_packing():
    fmt, codes = FORMATS["mxfp6_e2m3"], np.array([[0x01, 0x3F, 0x20, 0x15]], np.uint8)
    q = reference.quantize(fmt.element.decode(codes), fmt, columnwise=False)
    assert q.rowwise_data.tolist() == [
        [0x01 | (0x3F & 3) << 6, 0x3F >> 2 | (0x20 & 15) << 4, 0x20 >> 4 | 0x15 << 2]
    ]


@pytest.mark.parametrize(
    ("name", "shape"), [("nvfp4", (16, 15)), ("mxfp4", (15, 16)), ("mxfp6_e3m2", (16, 18))]
)
def test_ragged_rows_of_packed_formats_are_refused(name, shape):
    with pytest.raises(ValueError, match="multiple of"):
        reference.quantize(np.zeros(shape, np.float32), FORMATS[name])


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("shape", [(0, 32), (32, 0)])
def test_empty(name, shape):
    q = reference.quantize(np.zeros(shape, np.float32), FORMATS[name])
    assert q.rowwise_data.size == q.columnwise_data.size == 0
    if FORMATS[name].spans_tensor:
        assert q.amax.tolist() == [0]
    if FORMATS[name].rowwise.block is None:
        assert q.rowwise_scale_inv.tolist() == [1]


# Section 7: derived columnwise


@pytest.mark.parametrize("name", [name for name in FORMATS if FORMATS[name].derived])
@pytest.mark.parametrize("shape", [(36, 52), (128, 128), (132, 260), (304, 304)])
def test_derived_columnwise_equals_direct(name, shape):
    x = np.random.default_rng(6).normal(size=shape).astype(np.float32)
    q = reference.quantize(x, FORMATS[name])
    data, scales = reference.derive_columnwise(q, FORMATS[name], shape)
    assert np.array_equal(data, q.columnwise_data)
    assert np.array_equal(scales, q.columnwise_scale_inv)


def test_which_formats_are_derived():
    derived = {
        "fp8_e4m3",
        "fp8_e5m2",
        "fp8_e4m3_delayed",
        "fp8_block128",
        "mxfp8_2d",
        "nvfp4",
        "int8_block32",
    }
    assert {name for name in FORMATS if FORMATS[name].derived} == derived


def test_payload_bytes_of_the_example():
    shape, mxfp8 = (128, 520), FORMATS["mxfp8_e4m3"]
    rowwise, columnwise = (
        shape[0] * shape[1] + np.prod(block_grid(shape, u.per))
        for u in (mxfp8.rowwise, mxfp8.columnwise)
    )
    assert (rowwise, columnwise) == (68736, 68640)


@pytest.mark.parametrize("name", FORMATS)
def test_decoding_is_close(name):
    x = np.random.default_rng(7).normal(size=(64, 64)).astype(np.float32)
    fmt = FORMATS[name]
    q = reference.quantize(x, fmt)
    step = np.diff(fmt.element.magnitudes).max() / fmt.element.magnitudes[-1]
    for usage in ("rowwise", "columnwise"):
        assert (
            np.abs(reference.dequantize(q, fmt, x.shape, usage) - x).max() <= step * np.abs(x).max()
        )
