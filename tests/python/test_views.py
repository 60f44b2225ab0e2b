"""Views of a QuantizedTensor: exact on the bytes, written through, or refused with a reason."""

import copy
import pickle

import pytest
import torch

import narrowcast as nc
from models import BUFFERS, assert_quantized, assert_same, same, unit


def make(format, rows=3, columns=2, seed=0, less=0):
    """rows x columns units, less some rows."""
    u = unit(format)
    shape = rows * u - less, columns * u
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return x, nc.quantize(x, format)


def single_level(format):
    """No scale spans the tensor, so a part's bytes are those of the part quantized alone."""
    return not nc.format(format).tensor_amax


def assert_part(part, q, index):
    """A view has the values of the whole's part, in both usages."""
    assert isinstance(part, nc.QuantizedTensor)
    for usage in ("rowwise", "columnwise"):
        if getattr(part, f"{usage}_data") is not None:
            assert torch.equal(part.dequantize(usage=usage), q.dequantize(usage=usage)[index])


@pytest.mark.parametrize(("begin", "end"), [(0, 1), (1, 3), (2, 3), (0, 3), (1, 1), (3, 3)])
def test_slices_of_rows(format, begin, end):
    x, q = make(format)
    begin, end = begin * unit(format), end * unit(format)
    for part in (q[begin:end], q.narrow(0, begin, end - begin), q[begin:end, :]):
        assert part.shape == (end - begin, q.shape[1])
        assert_part(part, q, slice(begin, end))
        if single_level(format) and end > begin:
            assert_quantized(part, x[begin:end])


@pytest.mark.parametrize(("begin", "end"), [(0, 1), (1, 3), (2, 3), (1, 1)])
def test_slices_of_columns(format, begin, end):
    x, q = make(format, rows=2, columns=3)
    index = slice(None), slice(begin * unit(format), end * unit(format))
    for part in (q[index], q.narrow(1, index[1].start, index[1].stop - index[1].start)):
        assert part.shape == x[index].shape
        assert part.stride() == x[index].stride()
        assert_part(part, q, index)
        if single_level(format) and end > begin:
            assert_quantized(part, x[index])


def test_boxes(format):
    """Both dimensions at once, ragged ends included, and views of views."""
    x, q = make(format, rows=3, columns=3, less=unit(format) // 2)
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


def test_a_box_writes_through(format):
    """And nothing beside it changes."""
    x, q = make(format, rows=3, columns=3)
    u = unit(format)
    y, other = make(format, rows=3, columns=3, seed=1)
    index = slice(u, 2 * u), slice(u, 2 * u)
    before = q.dequantize()
    if single_level(format):
        q[index].copy_(other[index])
        x[index] = y[index]
        assert_quantized(q, x)
        q[index].copy_(x[index] * 3)
        q[:, :u].zero_()
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


def test_a_box_of_a_weight_writes_through(format):
    """The master is set, and bytes follow from it, whatever spans the tensor."""
    u = unit(format)
    weight = nc.convert(torch.nn.Linear(3 * u, 3 * u), format).weight.detach()
    y, other = make(format, rows=1, columns=1, seed=1)
    expected = weight.master.clone()
    index = slice(u, 2 * u), slice(u, 2 * u)
    for source, value in ((y * 3, y * 3), (other, other.dequantize()), (y, y)):
        weight[index].copy_(source)
        expected[index] = value
        assert torch.equal(weight.master, expected)
        if source is not other:
            assert_quantized(weight, expected)
    weight[:, :u].fill_(2.0)
    expected[:, :u] = 2.0
    assert_quantized(weight, expected)


def test_split_and_chunk(format):
    _, q = make(format)
    u = unit(format)
    for parts in (q.split(u), torch.split(q, [2 * u, u]), torch.chunk(q, 3), q.chunk(1)):
        begin = 0
        for part in parts:
            assert_part(part, q, slice(begin, begin + len(part)))
            begin += len(part)
        assert begin == len(q)


def test_padding_of_a_slice_is_zero(format):
    """The scales of a slice, padded anew, hold nothing of what lies beside it."""
    _, q = make(format, rows=8, columns=3)
    u, f = unit(format), nc.format(format)
    for part in (q[u : 2 * u], q[:, u : 2 * u]):
        for buffer, name in enumerate(BUFFERS[:4]):
            tensor, used = getattr(part, name), f.used_shape(buffer, *part.shape)
            assert tensor.shape == f.buffer_shape(buffer, *part.shape)
            tensor = tensor.clone()
            tensor[tuple(map(slice, used))] = 0
            assert tensor.count_nonzero() == 0


def test_cuts_within_a_block(format):
    _, q = make(format)
    rows, columns = q.shape
    f = nc.format(format)
    if f.row_step > 1:
        step = f.row_step
        for cut in (lambda: q[: step // 2], lambda: q[step + 1 :], lambda: q[5]):
            with pytest.raises(
                ValueError, match=rf"{rows}x{columns}.*{format}.*multiples of {step}.*row step"
            ):
                cut()
        with pytest.raises(ValueError, match=f"multiples of {step} rows"):
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
        lambda: q.t().master,
        lambda: q.t().zero_(),
        lambda: q.t().copy_(plain.t()),
        lambda: target.copy_(q.t()),
        lambda: torch.cat([q.t(), q.t()]),
        lambda: pickle.dumps(q.t()),
        lambda: copy.deepcopy(q.t()),
    ):
        with pytest.raises(NotImplementedError, match=words):
            refused()
    with pytest.raises(NotImplementedError, match="change values in place"):
        q.t().add_(1)


def test_transposed(format):
    """Exact where the usages mirror each other and hold the same values, else only read."""
    x, q = make(format)
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
    if single_level(format):
        target.t().copy_(torch.zeros(q.shape))
        assert_quantized(target, torch.zeros(q.t().shape))
    alone = nc.quantize(x, format, columnwise=False).t()
    assert alone.rowwise_data is None
    assert torch.equal(alone.dequantize(usage="columnwise"), q.dequantize().t())


def test_a_transposed_weight_keeps_its_master(format):
    f = nc.format(format)
    if not (f.mirrored and f.columnwise_derived):
        pytest.skip("its usages do not mirror each other")
    u = unit(format)
    layer = nc.convert(torch.nn.Linear(u, 2 * u), format)
    weight, value = layer.weight.detach(), torch.randn(u, 2 * u)
    assert torch.equal(weight.t().master, weight.master.t())
    weight.t().copy_(value)
    assert torch.equal(weight.master, value.t())
    assert_quantized(weight, value.t().contiguous())
    assert_quantized(weight.t(), value)
    assert torch.equal(copy.deepcopy(weight.t()).master, value)
    assert_same(pickle.loads(pickle.dumps(weight.t())), weight.t())


def test_cat(format):
    x, q = make(format, rows=3, columns=3, less=unit(format) // 2)
    u = unit(format)
    assert_same(torch.cat(q.split(u)), q)
    assert_same(torch.cat(q.split(u, 1), dim=1), q)
    assert_same(torch.cat([q[:u], q[u : u + 0], q[u:]], dim=-2), q)
    whole = torch.cat([q[u : 2 * u], q])
    assert torch.equal(whole.dequantize(), torch.cat([q.dequantize()[u : 2 * u], q.dequantize()]))
    if single_level(format):
        assert_quantized(whole, torch.cat([x[u : 2 * u], x]))
    else:
        with pytest.raises(NotImplementedError, match=r"one tensor-wide scale.*piece 1 from"):
            torch.cat([q[:u], nc.quantize(8 * x, format)])
    step = nc.format(format).row_step
    if (u // 2) % step:
        with pytest.raises(ValueError, match=f"piece 1 would begin at row.*multiples of {step}"):
            torch.cat([q[2 * u :], q])
    rowwise = nc.quantize(x, format, columnwise=False)
    joined = torch.cat([q[:u], rowwise[u:]]) if single_level(format) else torch.cat([rowwise])
    assert joined.columnwise_data is None
    assert torch.equal(joined.dequantize(), q.dequantize())


def test_cat_keeps_masters(format):
    u = unit(format)
    weights = [nc.convert(torch.nn.Linear(u, u), format).weight.detach() for _ in range(2)]
    if not single_level(format):
        for weight in weights:
            weight[0:u].fill_(1.0)
    joined = torch.cat(weights)
    assert torch.equal(joined.master, torch.cat([weight.master for weight in weights]))
    assert_quantized(joined, joined.master)


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
    assert_same(flat.clone().view(q.shape), q)
    assert flat.untyped_storage().data_ptr() == q.untyped_storage().data_ptr()
    for other in (lambda: flat[:64], lambda: flat.zero_(), lambda: torch.cat([flat, flat])):
        with pytest.raises(NotImplementedError, match="flat view"):
            other()


def test_identities(format):
    _, q = make(format)
    strided = torch.as_strided(q, q.shape, q.stride(), 0)
    for itself in (q.detach(), strided, q[:], q.view(q.shape), torch.ops.aten.alias(q)):
        assert isinstance(itself, nc.QuantizedTensor)
        assert itself.rowwise_data.data_ptr() == q.rowwise_data.data_ptr()


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
    _, q = make(format)
    with pytest.raises(NotImplementedError, match=f"matrix in {format}.*(dequantize|rows)"):
        view(q)


def test_one_row():
    q = nc.quantize(torch.arange(64.0), "mxfp8_e4m3", columnwise=False)
    assert torch.equal(q[32:].dequantize(), q.dequantize()[32:])
    with pytest.raises(ValueError, match=r"1x64.*multiples of 32.*column step"):
        q[:5]
    with pytest.raises(ValueError, match="1x64"):
        q.chunk(2)
