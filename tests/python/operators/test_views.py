"""Views of a QuantizedTensor, and writes to them: exact on the bytes, or refused with a reason."""

import copy
import pickle

import pytest
import torch

import narrowcast as nc
from matrices import assert_part, of_units, single_level
from models import assert_quantized, assert_same, same, unit


def test_boxes(format):
    """Both dimensions at once, ragged ends included, and views of views."""
    x, q = of_units(format, rows=3, columns=3, less=unit(format) // 2)
    u = unit(format)
    for part, index in (
        (q[u:, u:], (slice(u, None), slice(u, None))),
        (q[u:][:, : 2 * u], (slice(u, None), slice(2 * u))),
        (q[:, u:][: 2 * u, u:], (slice(2 * u), slice(2 * u, None))),
        (q.split(u, dim=1)[2].split(2 * u)[1], (slice(2 * u, None), slice(2 * u, None))),
        (q.chunk(3, dim=1)[1], (slice(None), slice(u, 2 * u))),
        (q.as_strided((u, u), (3 * u, 1), u), (slice(u), slice(u, 2 * u))),
    ):
        assert_part(part, q, index)
        if single_level(format):
            assert_quantized(part, x[index])


def test_cuts_within_a_block(format):
    _, q = of_units(format)
    rows, columns = q.shape
    f = nc.format(format)
    if f.row_step > 1:
        step = f.row_step
        for cut in (lambda: q[: step // 2], lambda: q[step + 1 :], lambda: q[5]):
            with pytest.raises(
                ValueError, match=rf"{rows}x{columns}.*{format}.*multiples of {step}.*row step"
            ):
                cut()
        with pytest.raises(ValueError, match=f"multiples of {step}"):
            q.chunk(5)
    else:
        assert_part(q[5], q, 5)
    if f.column_step > 1:
        step = f.column_step
        for cut in (lambda: q[:, : step // 2], lambda: q[:, step + 1 :], lambda: q.split(5, 1)):
            with pytest.raises(
                ValueError, match=rf"multiples of {step}.*column step.*Cut at column"
            ):
                cut()
    else:
        assert_part(q[:, 3:5], q, (slice(None), slice(3, 5)))


def test_one_usage_has_steps_of_its_own():
    """Rowwise bytes alone can be cut between any two rows, if blocks lie along them."""
    x = torch.randn(64, 64)
    q = nc.quantize(x, "mxfp8_e4m3", columnwise=False)
    assert_quantized(q[5], x[5])
    assert_quantized(q[3:7, 32:], x[3:7, 32:])
    q = nc.quantize(x, "mxfp8_e4m3", rowwise=False)
    assert torch.equal(
        q[32:, 5:].dequantize(usage="columnwise"), q.dequantize(usage="columnwise")[32:, 5:]
    )


def test_leading_dimensions(format):
    u = unit(format)
    x = torch.randn(4, 3, u, 32)
    q = nc.quantize(x, format)
    rows = 12 * u
    for shape in ((rows, 32), (12, u, 32), (4, -1, 32), (2, 2, 3 * u, 32)):
        view = q.view(shape)
        assert_same(view, q)
        assert torch.equal(view.dequantize(), q.dequantize().view(shape))
    for same_rows in (q.reshape(rows, 32), q.flatten(0, 2), q.unflatten(0, (2, 2)), q.unsqueeze(0)):
        assert_same(same_rows, q)
    assert q.unsqueeze(1).squeeze(1).shape == q.shape
    for part, index in (
        (q[2:], slice(2, None)),
        (q[1], 1),
        (q[1, 1:], (1, slice(1, None))),
        (q.select(0, 3)[2], (3, 2)),
        (q.unbind(0)[1], 1),
    ):
        assert part.shape == x[index].shape
        assert_part(part, q, index)
    for divided in (lambda: q[:, 1:], lambda: q.transpose(0, 1), lambda: q[::2]):
        with pytest.raises(NotImplementedError, match="whole rows or columns"):
            divided()


def test_flat_view(format):
    _, q = of_units(format)
    flat = q.view(-1)
    assert isinstance(flat, nc.QuantizedTensor)
    assert flat.shape == (q.numel(),)
    assert flat.is_flat
    assert_same(flat.view(q.shape), q)
    assert torch.equal(flat.dequantize(), q.dequantize().view(-1))
    copy = torch.empty_like(q).view(-1)
    copy.copy_(flat)
    assert_same(copy.view(q.shape), q)
    assert_same(flat.clone().view(q.shape), q)
    assert flat.untyped_storage().data_ptr() == q.untyped_storage().data_ptr()


@pytest.mark.parametrize(
    "view",
    [
        lambda q: q[::2],
        lambda q: q.view(q.shape[1], q.shape[0]),
        lambda q: torch.as_strided(q, q.shape, q.stride(), 64),
        lambda q: q.expand(2, *q.shape),
        lambda q: q.diagonal(),
        lambda q: q.unfold(0, 32, 16),
        lambda q: q.view(torch.int32),
        lambda q: q.view(2, -1),
    ],
)
def test_refused(format, view):
    _, q = of_units(format)
    with pytest.raises(NotImplementedError, match=f"matrix in {format}.*(dequantize|rows)"):
        view(q)


# ---- writes to a part ----


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


# ---- transposed views: exact where usages mirror each other, else only read ----


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
