"""A QuantizedTensor that is saved and loaded, or flattened, for all kinds of tensors: what is saved
is what torch.load makes of it.
"""

import io
import pickle

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

import narrowcast as nc
from checkpoints import Changed, load, parts_of, weight_of
from internals import config_of, view_of
from matrices import of_shape
from models import assert_same, same, unit
from narrowcast.tensor import rebuild


def saved_forms(format):
    """All kinds of tensors that are pickled."""
    n = unit(format)
    weight = weight_of(format)
    layer = nn.Linear(n, n, bias=False, device="meta")
    yield weight
    yield nc.convert(layer, format, trainable=False).weight
    yield weight[n:]
    yield weight.detach().view(-1)
    yield weight.detach()[n:].view(-1)
    yield weight.detach().view(2, n, n)
    yield weight.detach().requires_grad_()
    yield weight.detach()[:0]
    yield weight.detach()[:, :0]
    f = nc.format(format)
    if f.rules.transpose.kind == "exact":
        yield weight.detach().t()
    yield nc.quantize(torch.randn(n, n, dtype=torch.bfloat16), format)
    yield nc.quantize(torch.randn(n, 2 * n), format)[:, n:]
    for usage in ("rowwise", "columnwise"):
        one = dict.fromkeys(("rowwise", "columnwise"), False) | {usage: True}
        yield nc.quantize(torch.randn(n, n), format, **one)
        yield nc.quantize(torch.randn(0, n), format, **one)


def test_what_is_saved_is_loaded(format):
    for tensor in saved_forms(format):
        facts, tensors = parts_of(tensor)
        loaded = load(facts, tensors)
        facts_again, tensors_again = parts_of(loaded)
        assert facts_again == facts
        assert tensors_again.keys() == tensors.keys()
        for part, one in tensors.items():
            if one.numel():  # empty buffers are made anew, of the tensor's own shape
                assert tensors_again[part].shape == one.shape, (facts, part)
                assert one.is_meta or same(tensors_again[part], one), (facts, part)
        for usage in view_of(loaded).usages:
            assert loaded.detach().dequantize(usage=usage).shape == tensor.shape


def test_buffers_of_an_empty_tensor(format):
    """Without elements they may have any shape."""
    facts, tensors = parts_of(nc.quantize(torch.randn(0, unit(format)), format))
    for part, one in tensors.items():
        if one.numel() == 0:
            loaded = load(facts, {**tensors, part: one.new_empty(5, 0, 2)})
            assert getattr(loaded, part).shape == one.shape
            assert loaded.dequantize().shape == facts["shape"]


def test_fewer_arguments(format):
    """Those of checkpoints from before there were more."""
    facts, tensors = parts_of(nc.quantize(torch.randn(unit(format), unit(format)), format))
    loaded = rebuild(*Changed(facts, tensors).arguments[:8])
    assert parts_of(loaded)[0] == facts


def test_a_loaded_tensor_serves_as_any(format):
    weight, other = weight_of(format), weight_of(format)
    loaded = load(*parts_of(weight))
    model = nn.Linear(*reversed(weight.shape), bias=False)
    nc.convert(model, format, trainable=False).load_state_dict({"weight": loaded})
    assert_same(model.weight.detach(), weight.detach())
    other.detach().copy_(loaded.detach())
    assert_same(other.detach(), weight.detach())


def test_without_values(format):
    """torch.load onto meta, and in a FakeTensorMode."""
    weight = weight_of(format)
    file = io.BytesIO()
    torch.save(weight, file)
    file.seek(0)
    assert torch.load(file, weights_only=True, map_location="meta").device.type == "meta"
    file.seek(0)
    with FakeTensorMode():
        loaded = torch.load(file, weights_only=True)
        assert loaded.shape == loaded.dequantize().shape == weight.shape


# ---- checkpoints that were changed ----


def refused(facts, tensors, words):
    """Refused with those words and the weight's name."""
    with pytest.raises((RuntimeError, TypeError, ValueError), match=words) as caught:
        load(facts, tensors)
    assert repr(facts["name"]) in str(caught.value)


def test_every_tensor_is_checked(format):
    facts, tensors = parts_of(weight_of(format))
    for part, tensor in tensors.items():
        refused(facts, {**tensors, part: torch.cat([tensor, tensor])}, "elements|size")
        other = torch.float32 if tensor.dtype == torch.uint8 else torch.uint8
        word = part.removeprefix("tensor_")
        refused(facts, {**tensors, part: tensor.to(other)}, f"{word} .* is ")
        rest = {one: value for one, value in tensors.items() if one != part}
        refused(facts, rest, "one of them is missing|keeps one, and it has none")
    for part in {"tensor_amax", "history"} - tensors.keys():
        words = f"{part}: {format} keeps none, and it has one"
        refused(facts, {**tensors, part: torch.zeros(1)}, words)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("format", "another", "there is no format"),
        ("dtype", torch.float64, "its dtype is torch.float64, not float32"),
        ("matmul", "none", 'matmul is "dequantized" or "scaled", not .none.'),
        ("shape", (96, 64), "size"),
        ("flattened", (64, 65), "size"),
    ],
)
def test_facts_are_checked(format, field, value, words):
    facts, tensors = parts_of(weight_of(format))
    refused({**facts, field: value}, tensors, words)


def test_scaled_products_of_a_format_without(format):
    facts, tensors = parts_of(weight_of(format))
    facts["matmul"] = "scaled"
    if nc.format(format).matmul is None:
        refused(facts, tensors, f"{format} names no formats for activations")
    else:
        assert config_of(load(facts, tensors)).matmul == "scaled"


def test_memory_that_ends_too_soon(format):
    """Kernels look at the memory that they read."""
    facts, tensors = parts_of(weight_of(format))
    freed = tensors["rowwise_data"].clone()
    freed.untyped_storage().resize_(8)
    loaded = rebuild(*Changed(facts, {**tensors, "rowwise_data": freed}).arguments)
    with pytest.raises(ValueError, match=r"rowwise_data .* has been freed: .* 8 bytes"):
        loaded.detach().dequantize()


# ---- by torch.save, by pickle, and flattened ----


@pytest.mark.parametrize("weights_only", [True, False])
def test_saved_and_loaded(format, weights_only):
    one = unit(format)
    longer = of_shape(format, rows=2 * one)[1]
    for q in (longer, weight_of(format), weight_of(format, dtype=torch.bfloat16)):
        file = io.BytesIO()
        torch.save({"q": q, "part": longer[one:]}, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=weights_only)
        assert type(loaded["q"]) is nc.QuantizedTensor
        assert isinstance(loaded["q"], nn.Parameter) == isinstance(q, nn.Parameter)
        assert loaded["q"].dtype == q.dtype
        assert_same(loaded["q"], q)
        assert_same(loaded["part"], longer[one:])
        assert_same(pickle.loads(pickle.dumps(q)), q)


def test_flatten_and_unflatten(format):
    q = weight_of(format).detach()
    (name,), context = q.__tensor_flatten__()
    inner = {name: getattr(q, name)}
    other = nc.QuantizedTensor.__tensor_unflatten__(inner, context, q.shape, q.stride())
    assert_same(other, q)
    assert config_of(other) == config_of(q)._replace(name=None)
