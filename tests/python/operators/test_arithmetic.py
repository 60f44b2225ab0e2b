"""Arithmetic on a QuantizedTensor decodes; in place it is refused, but for merges."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import narrowcast as nc
from models import GATHERS, assert_quantized

TESTED_FORMATS = GATHERS


def make(format, grad=False):
    q = nc.quantize(torch.randn(64, 96, generator=torch.Generator().manual_seed(0)), format)
    return nn.Parameter(q) if grad else q


FUNCTIONS = {
    "add": lambda w: w + 1.0,
    "multiply": lambda w: w * torch.arange(96.0),
    "radd": lambda w: torch.ones(64, 96) - w,
    "norm": lambda w: w.norm(),
    "vector_norm": torch.linalg.vector_norm,
    "sum": lambda w: w.sum(0),
    "matmul": lambda w: w @ torch.ones(96, 5),
    "rmatmul": lambda w: torch.ones(5, 64) @ w,
    "mv": lambda w: torch.mv(w, torch.ones(96)),
    "addmm": lambda w: torch.addmm(torch.ones(64, 3), w, torch.ones(96, 3)),
    "einsum": lambda w: torch.einsum("ij,kj->ik", w, torch.ones(4, 96)),
    "where": lambda w: torch.where(w > 0, w, 0.0),
    "embedding": lambda w: F.embedding(torch.tensor([3, 3, 1]), w),
    "amax": torch.amax,
    "float": lambda w: w.float(),
    "softmax": lambda w: w.softmax(-1),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_decode(format, name):
    """The value and the gradient are those of the decoded tensor."""
    w, function = make(format, grad=True), FUNCTIONS[name]
    plain = w.dequantize().detach().requires_grad_()
    got, expected = function(w), function(plain)
    assert type(got) is torch.Tensor
    assert torch.equal(got, expected)
    (got * 2).sum().backward()
    (expected * 2).sum().backward()
    assert torch.equal(w.grad, plain.grad)


def test_gradient_of_dequantize(format):
    w = make(format, grad=True)
    for usage in ("rowwise", "columnwise"):
        (gradient,) = torch.autograd.grad(w.dequantize(usage=usage).sum(), w)
        assert torch.equal(gradient, torch.ones(64, 96))
    (gradient,) = torch.autograd.grad(w.dequantize(torch.bfloat16).sum(), w)
    assert gradient.dtype == torch.float32


IN_PLACE = {
    "mul_": lambda w: w.mul_(2),
    "with a factor": lambda w: w.add_(torch.ones(64, 96), alpha=-1e-3),
    "of a number": lambda w: w.add_(1),
    "of a row": lambda w: w.add_(torch.ones(96)),
    "lerp_": lambda w: w.lerp_(torch.ones(64, 96), 0.5),
    "masked_fill_": lambda w: w.masked_fill_(torch.ones(64, 96, dtype=torch.bool), 0),
    "foreach": lambda w: torch._foreach_mul_([torch.ones(3), w], 2.0),
    "out": lambda w: torch.add(torch.ones(64, 96), 1, out=w),
    "step": lambda w: torch.optim.SGD([w], lr=1.0).step(),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place_is_refused(format, name):
    w = make(format, grad=True)
    w.grad = torch.ones(64, 96)
    before = w.dequantize().detach()
    with torch.no_grad(), pytest.raises(NotImplementedError, match=f"64x96 matrix in {format}"):
        IN_PLACE[name](w)
    assert torch.equal(w.dequantize(), before)


def test_merging_into_a_stack_of_experts(format):
    weight, step = nc.quantize(torch.randn(2, 64, 96), format), torch.randn(2, 64, 96)
    value = weight.dequantize()
    weight += step
    assert_quantized(weight, value + step)


def test_merging_into_a_frozen_weight(format):
    """As peft merges, and takes back."""
    weight = nc.convert(nn.Linear(96, 64), format, trainable=False).weight
    value, step = weight.dequantize(), torch.full((64, 96), 1e-4)
    weight.data += step
    assert_quantized(weight, value + step)
    weight.data -= step
    torch.testing.assert_close(weight.dequantize(), value, rtol=1e-5, atol=0)
