"""The reference of reductions against that of casts: a part is a row of a matrix."""

import numpy as np
import pytest

import reference
import values
from conformance import FORMATS

CARRIED = [
    name for name, fmt in FORMATS.items() if not fmt.spans_tensor and fmt.rowwise.block[0] == 1
]


@pytest.mark.parametrize("name", CARRIED)
def test_a_part_is_a_row(name):
    fmt, shape = FORMATS[name], (1, 8 * 77)
    for kind, make in values.FINITE.items():
        x = make(shape, np.random.default_rng(2)).astype(np.float32)
        sent = reference.cast_part(x[0], fmt)
        cast = reference.quantize(x, fmt, columnwise=False)
        assert sent[: cast.rowwise_data.size].tolist() == cast.rowwise_data[0].tolist(), kind
        row = reference.dequantize(cast, fmt, shape)[0]
        assert reference.same_bits(reference.part_of(sent, fmt, x.size), row), kind


@pytest.mark.parametrize("name", CARRIED)
def test_sums(name):
    """Of powers of two, which every format holds: in the order of ranks, where that shows."""
    fmt = FORMATS[name]
    first, second = (np.zeros((2, 32), np.float32) for _ in range(2))
    first[:, 0], second[:, 0] = 2.0**24, 1
    assert reference.reduce_scatter([first, second], fmt, 2)[0][0] == 2.0**23
    values = [first, second, second, -first]
    parts = [np.repeat(one, 2, axis=0) for one in values]
    assert [one[0] for one in reference.reduce_scatter(parts, fmt, 1)] == [0] * 4
    second[0, 0] = np.inf
    assert np.isnan(reference.reduce_scatter([first, second], fmt, 2)[0]).all()
