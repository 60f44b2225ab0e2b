"""The reference's layout, and columnwise bytes that are derived, against docs/numerics.md; and the
spec files against its table of formats.
"""

import itertools
from pathlib import Path

import numpy as np
import pytest

import reference
from facts import FORMATS
from reference.layout import block_grid
from reference.scales import block_scales

ROOT = Path(__file__).parents[3]
SPECS = sorted(ROOT.glob("spec/*.toml"))


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_spec_files_state_the_facts_of_the_table(path):
    if path.stem not in FORMATS:
        pytest.skip("not one of the formats of the table")
    assert reference.load_format(path) == FORMATS[path.stem]


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
        ("fp8_block128_f32", [(300, 520), (3, 8), (520, 300), (5, 4)]),
        ("fp8_block1x128", [(300, 520), (5, 300), (520, 300), (3, 520)]),
        ("fp8_block1x128_128x128", [(300, 520), (5, 300), (520, 300), (5, 4)]),
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


def test_empty():
    for (name, fmt), shape in itertools.product(FORMATS.items(), [(0, 32), (32, 0)]):
        q = reference.quantize(np.zeros(shape, np.float32), fmt)
        assert q.rowwise_data.size == q.columnwise_data.size == 0, (name, shape)
        if fmt.spans_tensor:
            assert q.tensor_amax.tolist() == [0], (name, shape)
        if fmt.rowwise.block is None:
            assert q.rowwise_scale_inv.tolist() == [1], (name, shape)


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
        "fp8_block128_f32",
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
