"""Loads into a part of a QuantizedTensor: through to its bytes, or refused."""

import pytest
import torch

from matrices import of_units, single_level
from models import assert_quantized, unit


def test_a_box_writes_through(format):
    """And nothing beside it changes."""
    x, q = of_units(format, rows=3, columns=3)
    u = unit(format)
    y, other = of_units(format, rows=3, columns=3, seed=1)
    index = slice(u, 2 * u), slice(u, 2 * u)
    before = q.dequantize()
    if single_level(format):
        q[index].copy_(other[index])
        x[index] = y[index]
        assert_quantized(q, x)
        q[index].copy_(x[index] * 3)
        q[:, :u].copy_(torch.zeros(len(q), u))
        x[index] *= 3
        x[:, :u] = 0
        assert_quantized(q, x)
    else:  # the other's bytes mean something else under this one's scale
        for source in (other[index], y[index]):
            with pytest.raises(NotImplementedError, match=r"rows .* cannot be written alone"):
                q[index].copy_(source)
        assert torch.equal(q.dequantize(), before)
        q[index].copy_(q[:u, :u])
        before[index] = before[:u, :u]
        assert torch.equal(q.dequantize(), before)
