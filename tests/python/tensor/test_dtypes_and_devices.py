"""A QuantizedTensor in another logical dtype or on another device: the same bytes, and the same
parameter of its module.
"""

import pytest
import torch
from torch import nn

import narrowcast as nc
from internals import tensors_of
from matrices import of_shape
from models import assert_same


def test_logical_dtype(format):
    """to(dtype) keeps the bytes; float() and its kin make a plain tensor, unless it is narrow."""
    _, q = of_shape(format)
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
    _, q = of_shape(format)
    there = q.cuda()
    assert there.device.type == "cuda"
    assert all(t.is_cuda for t in tensors_of(there))
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
