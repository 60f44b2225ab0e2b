"""torch.cat of parts of QuantizedTensors: exact on bytes and masters, or refused with a reason."""

import pytest
import torch

import narrowcast as nc
from matrices import of_units, single_level
from models import assert_quantized, assert_same, unit


def test_cat(format):
    x, q = of_units(format, rows=3, columns=3, less=unit(format) // 2)
    u = unit(format)
    assert_same(torch.cat(q.split(u)), q)
    assert_same(torch.cat(q.split(u, 1), dim=1), q)
    assert_same(torch.cat([q[:u], q[u : u + 0], q[u:]], dim=-2), q)
    whole = torch.cat([q[u : 2 * u], q])
    assert torch.equal(whole.dequantize(), torch.cat([q.dequantize()[u : 2 * u], q.dequantize()]))
    if single_level(format):
        assert_quantized(whole, torch.cat([x[u : 2 * u], x]))
    else:
        with pytest.raises(NotImplementedError, match="needs pieces with one tensor-wide scale"):
            torch.cat([q[:u], nc.quantize(8 * x, format)])
    step = nc.format(format).row_step
    if (u // 2) % step:
        with pytest.raises(ValueError, match=f"piece would begin at row.*multiples of {step}"):
            torch.cat([q[2 * u :], q])
    rowwise = nc.quantize(x, format, columnwise=False)
    joined = torch.cat([q[:u], rowwise[u:]]) if single_level(format) else torch.cat([rowwise])
    assert joined.columnwise_data is None
    assert torch.equal(joined.dequantize(), q.dequantize())


@pytest.mark.old_way("bytes are joined")
def test_cat_keeps_masters(format):
    u = unit(format)
    weights = [nc.convert(torch.nn.Linear(u, u), format).weight.detach() for _ in range(2)]
    if not single_level(format):
        for weight in weights:
            weight[0:u].fill_(1.0)
    joined = torch.cat(weights)
    assert torch.equal(joined.master, torch.cat([weight.master for weight in weights]))
    assert_quantized(joined, joined.master)
