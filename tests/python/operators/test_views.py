"""Views of a QuantizedTensor: exact on the bytes, or refused with a reason."""

import pytest
import torch

import narrowcast as nc
from matrices import assert_part, of_units, single_level
from models import assert_quantized, assert_same, unit


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


def test_one_row():
    q = nc.quantize(torch.arange(64.0), "mxfp8_e4m3", columnwise=False)
    assert torch.equal(q[32:].dequantize(), q.dequantize()[32:])
    with pytest.raises(ValueError, match=r"1x64.*multiples of 32.*column step"):
        q[:5]
