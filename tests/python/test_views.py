"""Views of a QuantizedTensor: exact on the bytes, written through, or refused with a reason."""

import pytest
import torch

import narrowcast as nc
from models import BUFFERS, assert_quantized, assert_same, unit


def make(format, rows=None, columns=64, seed=0):
    """Values and their quantization; three units of rows, if not said otherwise."""
    rows = 3 * unit(format) if rows is None else rows
    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
    return x, nc.quantize(x, format)


def single_level(format):
    """No scale spans the tensor, so a part's bytes are those of the part quantized alone."""
    return not nc.format(format).tensor_amax


def assert_rows(part, q, begin, end):
    """A view has the rows of the whole: in value, and in the codes of both usages."""
    for usage in ("rowwise", "columnwise"):
        if getattr(part, f"{usage}_data") is not None:
            assert torch.equal(part.dequantize(usage=usage), q.dequantize(usage=usage)[begin:end])


@pytest.mark.parametrize(("begin", "end"), [(0, 1), (1, 3), (2, 3), (0, 3), (1, 1), (3, 3)])
def test_slices(format, begin, end):
    x, q = make(format)
    begin, end = begin * unit(format), end * unit(format)
    for part in (q[begin:end], q.narrow(0, begin, end - begin), q[begin:end, :]):
        assert isinstance(part, nc.QuantizedTensor)
        assert part.shape == (end - begin, 64)
        assert_rows(part, q, begin, end)
        if single_level(format):
            assert_quantized(part, x[begin:end])


def test_ragged_end(format):
    begin = 2 * unit(format)
    x, q = make(format, rows=begin + 12)
    part = q[begin:]
    assert_rows(part, q, begin, begin + 12)
    if single_level(format):
        assert_quantized(part, x[begin:])


def test_split_and_chunk(format):
    _, q = make(format)
    one = unit(format)
    for parts in (q.split(one), torch.split(q, [2 * one, one]), torch.chunk(q, 3), q.chunk(1)):
        begin = 0
        for part in parts:
            assert_rows(part, q, begin, begin + len(part))
            begin += len(part)
        assert begin == len(q)


def test_padding_of_a_slice_is_zero(format):
    """The scales of a slice, padded anew, hold nothing of the rows beside it."""
    one, f = unit(format), nc.format(format)
    part = make(format, rows=8 * one)[1][one : 2 * one]
    for buffer, name in enumerate(BUFFERS[:4]):
        tensor, used = getattr(part, name), f.used_shape(buffer, one, 64)
        assert tensor.shape == f.buffer_shape(buffer, one, 64)
        tensor = tensor.clone()
        tensor[tuple(slice(size) for size in used)] = 0
        assert tensor.count_nonzero() == 0


def test_slices_write_through(format):
    x, q = make(format)
    other = nc.quantize(make(format, seed=1)[0], format)
    rows = slice(unit(format), 2 * unit(format))
    q[rows].copy_(other[rows])
    if single_level(format):
        expected = nc.quantize(x, format).dequantize()
        expected[rows] = other.dequantize()[rows]
        assert torch.equal(q.dequantize(), expected)
        changed = x.clone()
        changed[rows] = make(format, seed=1)[0][rows]
        assert_quantized(q, changed)
    else:
        assert torch.equal(q[rows].rowwise_data, other[rows].rowwise_data)


def test_cuts_within_a_block(format):
    _, q = make(format)
    step = nc.format(format).row_step
    if step == 1:  # no cut is within a block
        assert_rows(q[37:], q, 37, len(q))
        return
    words = rf"{len(q)}x64.*{format}.*multiples of {step}.*row step"
    for cut in (lambda: q[: step // 2], lambda: q[step + 1 :], lambda: q.split(step - 1)):
        with pytest.raises(ValueError, match=words):
            cut()
    with pytest.raises(ValueError, match=f"5 shards.*multiples of {step} rows"):
        q.chunk(5)


def test_leading_dimensions(format):
    half = unit(format) // 2
    x = torch.randn(4, 3, half, 32)
    q = nc.quantize(x, format)
    for shape in ((12 * half, 32), (12, half, 32), (4, -1, 32), (2, 2, 3 * half, 32)):
        view = q.view(shape)
        assert_same(view, q)
        assert torch.equal(view.dequantize(), q.dequantize().view(shape))
    assert_same(q.reshape(12 * half, 32), q)
    assert_same(q.flatten(0, 2), q)
    part = q[2:]
    assert part.shape == (2, 3, half, 32)
    assert torch.equal(part.dequantize(), q.dequantize()[2:])


def test_flat_view(format):
    _, q = make(format)
    flat = q.view(-1)
    assert isinstance(flat, nc.QuantizedTensor)
    assert flat.shape == (q.numel(),)
    assert flat.is_flat
    assert_same(flat.view(q.shape), q)
    assert torch.equal(flat.dequantize(), q.dequantize().view(-1))
    copy = torch.empty_like(q).view(-1)
    copy.copy_(flat)
    assert_same(copy.view(q.shape), q)
    assert flat.untyped_storage().data_ptr() == q.untyped_storage().data_ptr()
    with pytest.raises(NotImplementedError, match="flat view"):
        flat[:64]


def test_identities(format):
    _, q = make(format)
    strided = torch.as_strided(q, q.shape, q.stride(), 0)
    for same in (q.detach(), strided, q[:], q.view(q.shape), torch.ops.aten.alias(q)):
        assert isinstance(same, nc.QuantizedTensor)
        assert same.rowwise_data.data_ptr() == q.rowwise_data.data_ptr()


@pytest.mark.parametrize(
    "view",
    [
        lambda q: q.t(),
        lambda q: q.transpose(0, 1),
        lambda q: q.T,
        lambda q: q[:, :32],
        lambda q: q[::2],
        lambda q: q[5],
        lambda q: q.view(64, -1),
        lambda q: q.split(32, dim=1),
        lambda q: torch.as_strided(q, (32, 64), (64, 1), 64),
        lambda q: q.expand(2, *q.shape),
        lambda q: q.permute(1, 0),
        lambda q: q.diagonal(),
        lambda q: q.unfold(0, 32, 32),
    ],
)
def test_refused(format, view):
    _, q = make(format)
    with pytest.raises(
        NotImplementedError, match=f"{len(q)}x64 matrix in {format}.*(dequantize|rows)"
    ):
        view(q)


def test_columns_cannot_be_sharded(format):
    _, q = make(format)
    with pytest.raises(NotImplementedError, match=r"dimension 1.*Shard\(0\)"):
        q.chunk(2, dim=1)


def test_one_row_cannot_be_cut():
    q = nc.quantize(torch.ones(64), "mxfp8_e4m3")
    with pytest.raises(NotImplementedError, match="one row"):
        q[:32]
    with pytest.raises(ValueError, match="1x64"):
        q.chunk(2)
