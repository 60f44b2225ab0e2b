"""Copies of a QuantizedTensor: its bytes in other memory, never another value."""

import copy

import pytest
import torch

import narrowcast as nc
from internals import tensors_of
from matrices import of_shape, weight_of
from models import assert_quantized, assert_same


def addresses(q):
    return {tensor.data_ptr() for tensor in tensors_of(q)}


@pytest.mark.parametrize(
    "duplicate",
    [torch.clone, copy.deepcopy, lambda q: q.to(q.device, copy=True), lambda q: q.detach().clone()],
)
def test_copies_share_nothing(format, duplicate):
    for q in (of_shape(format)[1], weight_of(format)):
        other = duplicate(q)
        assert_same(other, q)
        assert not addresses(other) & addresses(q)
        assert (other.shape, other.dtype) == (q.shape, q.dtype)


def test_copy_from_the_same_format(format):
    _, q = of_shape(format)
    for target in (torch.empty_like(q), weight_of(format, seed=1)):
        assert target.copy_(q) is target
        assert_same(target, q)


def test_copy_from_plain(format):
    x, q = of_shape(format)
    for value in (x, x.to(torch.float64)):
        for target in (of_shape(format, seed=1)[1], weight_of(format, seed=1)):
            target.copy_(value)
            assert_same(target, q)


def test_copy_from_another_format():
    x, q = of_shape("mxfp8_e4m3")
    target = of_shape("nvfp4", seed=1)[1]
    target.copy_(q)
    assert_quantized(target, q.dequantize())
    assert x.shape == target.shape


def test_copy_from_a_tensor_without_a_usage(format):
    x, q = of_shape(format)
    target, rowwise = torch.empty_like(q), of_shape(format, columnwise=False)[1]
    if nc.format(format).columnwise_derived:
        target.copy_(rowwise)
        assert_same(target, q)
    else:
        with pytest.raises(ValueError, match="without columnwise bytes"):
            target.copy_(rowwise)
    columnwise = of_shape(format, rowwise=False)[1]
    with pytest.raises(ValueError, match="without rowwise bytes"):
        target.copy_(columnwise)
    columnwise.copy_(q)
    assert_same(columnwise, q, ["columnwise_data", "columnwise_scale_inv"])
    columnwise.copy_(x)
    assert_same(columnwise, q, ["columnwise_data", "columnwise_scale_inv"])


def test_new_tensors(format):
    _, q = of_shape(format)
    zeros = torch.zeros_like(q)
    assert isinstance(zeros, nc.QuantizedTensor)
    assert_quantized(zeros, torch.zeros(q.shape))
    like = torch.empty_like(q, dtype=torch.bfloat16)
    assert isinstance(like, nc.QuantizedTensor)
    assert (like.shape, like.dtype) == (q.shape, torch.bfloat16)
    for plain in (
        q.new_zeros(32, 96),
        q.new_empty(32, 96),
        q.new_empty(0),
        torch.empty_like(q, dtype=torch.bool),
        torch.zeros_like(q, dtype=torch.int64),
    ):
        assert type(plain) is torch.Tensor
