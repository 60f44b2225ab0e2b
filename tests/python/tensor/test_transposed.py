"""Transposed views of a QuantizedTensor: exact where usages mirror each other, else only read."""

import copy
import pickle

import pytest
import torch

import narrowcast as nc
from matrices import of_units
from models import assert_same, same, unit


def assert_read(q, f):
    """Transposed views without bytes: products and arithmetic read them, nothing else does."""
    plain, x = q.dequantize(), torch.randn(3, q.shape[1])
    for t in (q.t(), q.T, q.mT, q.transpose(0, 1), q.permute(1, 0), q.t().detach()):
        assert (t.shape, t.stride()) == (plain.t().shape, plain.t().stride())
        assert same(t.dequantize(), plain.t())
        assert same(t + 1, plain.t() + 1)
        assert same(x @ t, x @ plain.t())
        assert_same(t.t(), q)
    u = unit(f.name)
    assert same(q.t()[1:u, u:].dequantize(), plain.t()[1:u, u:])
    assert_same(q.t()[:, u:].t(), q[u:])
    words = f"matrix in {f.name}: this transposed view has no bytes: .*columnwise bytes"
    target = nc.quantize(plain.t().contiguous(), f)
    for refused in (
        q.t().contiguous,
        lambda: q.t().rowwise_data,
        lambda: q.t().copy_(plain.t()),
        lambda: target.copy_(q.t()),
        lambda: pickle.dumps(q.t()),
        lambda: copy.deepcopy(q.t()),
    ):
        with pytest.raises(NotImplementedError, match=words):
            refused()
    with pytest.raises(NotImplementedError, match="would change values"):
        q.t().add_(1)


def test_transposed(format):
    """Exact where the usages mirror each other and hold the same values, else only read."""
    x, q = of_units(format)
    f = nc.format(format)
    if not (f.mirrored and f.columnwise_derived):
        assert_read(q, f)
        return
    for t in (q.t(), q.T, q.transpose(0, 1), q.permute(1, 0), q.mT):
        assert (t.shape, t.stride()) == (x.t().shape, x.t().stride())
        assert_same(t, nc.quantize(x.t().contiguous(), format))
        assert t.rowwise_data.data_ptr() == q.columnwise_data.data_ptr()
        assert torch.equal(t.dequantize(), q.dequantize().t())
        assert_same(t.t(), q)
        assert_same(t.clone(), t)
        assert t.clone().is_contiguous()
        assert_same(t.contiguous().t(), q)
    u = unit(format)
    part = q.t()[u:, 2 * u :]
    assert torch.equal(part.dequantize(), q.dequantize().t()[u:, 2 * u :])
    target = torch.empty_like(q.t())
    assert_same(target.copy_(q.t()), q.t())
    alone = nc.quantize(x, format, columnwise=False).t()
    assert alone.rowwise_data is None
    assert torch.equal(alone.dequantize(usage="columnwise"), q.dequantize().t())
