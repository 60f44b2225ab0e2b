"""Copies of a QuantizedTensor: its bytes in other memory, never another value."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn

import narrowcast as nc
from models import GATHERS, assert_quantized, assert_same, same, unit


def make(format, rows=64, columns=96, seed=0, **usages):
    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
    return x, nc.quantize(x, format, **usages)


def weight_of(format, seed=0, dtype=torch.float32):
    """A converted weight, which keeps its master."""
    layer = nn.Linear(96, 64, bias=False, dtype=dtype)
    with torch.no_grad():
        layer.weight.copy_(make(format, seed=seed)[0])
    return nc.convert(layer, format).weight


def addresses(q):
    return {tensor.data_ptr() for tensor in q._store.tensors}


@pytest.mark.parametrize(
    "duplicate",
    [torch.clone, copy.deepcopy, lambda q: q.to(q.device, copy=True), lambda q: q.detach().clone()],
)
def test_copies_share_nothing(format, duplicate):
    for q in (make(format)[1], weight_of(format)):
        other = duplicate(q)
        assert_same(other, q)
        assert same(other.master, q.master)
        assert not addresses(other) & addresses(q)
        assert (other.shape, other.dtype) == (q.shape, q.dtype)


def test_copy_of_a_slice(format):
    one = unit(format)
    _, q = make(format, rows=2 * one)
    part = q[one:].clone()
    assert_same(part, q[one:])
    assert part._store.rows == one


def test_deepcopy_of_a_model(format):
    model = nc.convert(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)), format)
    other = copy.deepcopy(model)
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert type(p) is type(q)
        assert isinstance(q, nn.Parameter)
        assert q.requires_grad
    assert_same(other[0].weight, model[0].weight)
    assert not addresses(other[0].weight) & addresses(model[0].weight)
    assert other[0].weight._store.label.name == "0.weight"


def test_copy_from_the_same_format(format):
    _, q = make(format)
    target = torch.empty_like(q)
    assert target.copy_(q) is target
    assert_same(target, q)
    weight = weight_of(format, seed=1)
    with torch.no_grad():
        weight.copy_(q)
    assert_same(weight, q)
    assert torch.equal(weight.master, q.dequantize())
    with torch.no_grad():
        weight.copy_(weight_of(format))
    assert_same(weight, q)
    assert torch.equal(weight.master, make(format)[0])


def test_copy_from_plain(format):
    x, q = make(format)
    target = make(format, seed=1)[1]
    target.copy_(x)
    assert_same(target, q)
    weight = weight_of(format, seed=1)
    with torch.no_grad():
        weight.copy_(x.to(torch.float64))
    assert torch.equal(weight.master, x)
    assert_same(weight, q)
    with torch.no_grad():
        weight.copy_(torch.tensor(2.0))
    assert_quantized(weight, torch.full_like(x, 2.0))


def test_copy_from_another_format():
    x, q = make("mxfp8_e4m3")
    target = make("nvfp4", seed=1)[1]
    target.copy_(q)
    assert_quantized(target, q.dequantize())
    assert x.shape == target.shape


def test_copy_into_plain(format):
    _, q = make(format)
    plain = torch.empty(64, 96)
    plain.copy_(q)
    assert torch.equal(plain, q.dequantize())


def test_copy_from_a_tensor_without_a_usage(format):
    x, q = make(format)
    target, rowwise = torch.empty_like(q), make(format, columnwise=False)[1]
    if nc.format(format).columnwise_derived:
        target.copy_(rowwise)
        assert_same(target, q)
    else:
        with pytest.raises(ValueError, match="without columnwise bytes"):
            target.copy_(rowwise)
    columnwise = make(format, rowwise=False)[1]
    with pytest.raises(ValueError, match="without rowwise bytes"):
        target.copy_(columnwise)
    columnwise.copy_(q)
    assert_same(columnwise, q, ["columnwise_data", "columnwise_scale_inv"])
    columnwise.copy_(x)
    assert_same(columnwise, q, ["columnwise_data", "columnwise_scale_inv"])


def test_part_of_a_tensor_wide_scale_cannot_be_written_alone():
    x, q = make("nvfp4")
    with pytest.raises(NotImplementedError, match="rows 0 to 32 cannot be written alone"):
        q[:32].copy_(x[:32] * 3)
    weight = weight_of("nvfp4")
    with torch.no_grad():
        weight[:32].copy_(x[:32] * 3)
    assert_quantized(weight, torch.cat([x[:32] * 3, x[32:]]))


def test_new_tensors(format):
    _, q = make(format)
    zeros = q.new_zeros(32, 96)
    assert isinstance(zeros, nc.QuantizedTensor)
    assert_quantized(zeros, torch.zeros(32, 96))
    assert (zeros.columnwise_data is None) == nc.format(format).columnwise_derived
    empty = q.new_empty(32, 96)
    assert isinstance(empty, nc.QuantizedTensor)
    assert empty.shape == (32, 96)
    assert q.new_empty(0).shape == (0,)
    like = torch.empty_like(q, dtype=torch.bfloat16)
    assert isinstance(like, nc.QuantizedTensor)
    assert (like.shape, like.dtype) == (q.shape, torch.bfloat16)
    for plain in (q.new_zeros(3, dtype=torch.int64), torch.empty_like(q, dtype=torch.bool)):
        assert type(plain) is torch.Tensor


def test_plain_like(format):
    _, q = make(format)
    for one, value in ((torch.zeros_like, 0), (torch.ones_like, 1)):
        plain = one(q)
        assert type(plain) is torch.Tensor
        assert torch.equal(plain, torch.full((64, 96), float(value)))
    assert type(torch.randn_like(q)) is torch.Tensor
    assert torch.full_like(q, 7, dtype=torch.int64).sum() == 7 * 64 * 96


def test_logical_dtype(format):
    """to(dtype) keeps the bytes; float() and its kin make a plain tensor, unless it is narrow."""
    _, q = make(format)
    narrow = q.to(torch.bfloat16)
    assert isinstance(narrow, nc.QuantizedTensor)
    assert narrow.dtype == torch.bfloat16
    assert_same(narrow, q)
    assert q.to(torch.float32) is q
    for plain, dtype in (
        (q.float(), torch.float32),
        (narrow.float(), torch.float32),
        (q.bfloat16(), torch.bfloat16),
        (q.half(), torch.float16),
        (q.double(), torch.float64),
        (narrow.half(), torch.float16),
    ):
        assert type(plain) is torch.Tensor
        assert torch.equal(plain, q.dequantize().to(dtype))
    assert narrow.bfloat16() is narrow  # torchtitan's experts ask so before a product
    assert isinstance(q.to(torch.float16).half(), nc.QuantizedTensor)
    with pytest.raises(NotImplementedError, match="int8"):
        q.to(torch.int8)


def test_module_to(format):
    layer = nc.convert(nn.Linear(64, 64), format)
    weight, before = layer.weight, layer.weight.detach().clone()
    layer.to(torch.bfloat16)
    assert layer.weight is weight
    assert weight.dtype == layer.bias.dtype == torch.bfloat16
    assert_same(weight, before)
    assert torch.equal(weight.master, before.master)
    layer.to("cpu")
    layer.bfloat16()  # which it is
    assert layer.weight is weight
    for convert in (layer.float, layer.half, layer.double):
        with pytest.raises(TypeError, match=r"weight.*module.to\(dtype\)"):
            convert()
    assert isinstance(layer.weight, nc.QuantizedTensor)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_across_devices(format):
    _, q = make(format)
    there = q.cuda()
    assert there.device.type == "cuda"
    assert all(t.is_cuda for t in there._store.tensors)
    assert_same(there.cpu(), q)
    target = torch.empty_like(q)
    target.copy_(there)
    assert_same(target, q)
    layer = nc.convert(nn.Linear(64, 64), format)
    weight, before = layer.weight, layer.weight.detach().clone()
    layer.cuda()
    assert layer.weight is weight
    assert_same(weight, before)
    pinned = q.pin_memory()
    assert pinned.is_pinned()
    assert not q.is_pinned()
    assert_same(pinned, q)


@pytest.mark.parametrize("weights_only", [True, False])
def test_saved_and_loaded(format, weights_only):
    one = unit(format)
    longer = make(format, rows=2 * one)[1]
    for q in (longer, weight_of(format), weight_of(format, dtype=torch.bfloat16)):
        file = io.BytesIO()
        torch.save({"q": q, "part": longer[one:]}, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=weights_only)
        assert type(loaded["q"]) is nc.QuantizedTensor
        assert isinstance(loaded["q"], nn.Parameter) == isinstance(q, nn.Parameter)
        assert loaded["q"].dtype == q.dtype
        assert_same(loaded["q"], q)
        assert same(loaded["q"].master, q.master)
        assert_same(loaded["part"], longer[one:])
        assert_same(pickle.loads(pickle.dumps(q)), q)


def test_flatten_and_unflatten(format):
    q = weight_of(format).detach()
    names, context = q.__tensor_flatten__()
    assert "rowwise_data" in names
    assert "master" in names
    assert all(type(getattr(q, name)) is torch.Tensor for name in names)
    inner = {name: getattr(q, name).clone() for name in names}
    other = nc.QuantizedTensor.__tensor_unflatten__(inner, context, q.shape, q.stride())
    assert_same(other, q)
    assert other._store.label.name == "weight"


def test_state_dict(format):
    """In one process: it holds masters, for a model in the format and for a plain one."""
    model, other = (nc.convert(nn.Linear(96, 64), format) for _ in range(2))
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert_same(other.weight, model.weight)
    assert torch.equal(other.weight.master, model.weight.master)
    plain = nn.Linear(96, 64)
    other.load_state_dict(plain.state_dict())
    assert torch.equal(other.weight.master, plain.weight)
    assert_quantized(other.weight, plain.weight.detach())
    plain.load_state_dict(model.state_dict())
    assert torch.equal(plain.weight, model.weight.master)


def test_assigning_data(format):
    """As libraries change dtypes: bytes, master and logical dtype are those of what is assigned.
    Optimizers go on, with state and without.
    """
    layer = nc.convert(nn.Linear(64, 64, bias=False, dtype=torch.bfloat16), format)
    weight, value = layer.weight, layer.weight.data.to(torch.float32)
    twin = copy.deepcopy(layer).to(torch.float32)
    weight.data = value
    assert layer.weight is weight
    assert weight.requires_grad
    assert weight.dtype == torch.float32
    assert weight._store is value._store
    optimizers = [nc.FusedAdam(one.parameters(), lr=0.1) for one in (layer, twin)]
    for step in range(3):
        for one, optimizer in zip((layer, twin), optimizers, strict=True):
            one(torch.full((2, 64), float(step))).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert same(weight.master, twin.weight.master)
        assert_same(weight.detach(), twin.weight.detach())
        weight.data = weight.data.clone()


@pytest.mark.parametrize(
    "value",
    [
        lambda format: torch.ones(64, 64),
        lambda format: nc.quantize(torch.ones(128, 64), format),
        lambda format: nc.quantize(torch.ones(128, 64), format)[:64],
        lambda format: nc.quantize(torch.ones(64, 64), next(n for n in GATHERS if n != format)),
    ],
)
def test_assigning_other_data_is_refused(value, format):
    """It would change nothing, in silence: torch swaps what a wrapper does not have."""
    if 64 % nc.format(format).row_step:
        pytest.skip("cannot be cut there")
    q = nc.quantize(torch.randn(64, 64), format)
    before = q.dequantize()
    with pytest.raises(NotImplementedError, match=r"\.data .*copy_"):
        q.data = value(format)
    assert torch.equal(q.dequantize(), before)
