"""F.linear with a quantized weight: one call of bindings/matmul/linear.cpp, derivative included."""

import torch
import torch.nn.functional as F

from narrowcast import _C
from narrowcast.tensor import QuantizedTensor, compiling
from narrowcast.tensor.dispatch import handles, implements, in_transform
from narrowcast.tensor.product import by_one_call, check_transform
from narrowcast.tensor.view import View

compiling.leave_alone(View.operand)  # which C++ calls, in a backward


@handles(F.linear)
def linear(func, args, kwargs):
    """torch.nn.functional.linear where at least one operand is a QuantizedTensor.

    input: [..., in_features]; weight: [out_features, in_features]; bias: [out_features] or None.
    The product is in the dtype of the input, or in autocast's.
    """
    input, weight, bias = _operands(*args, **kwargs)
    if not isinstance(weight, QuantizedTensor):
        return F.linear(input, weight, bias)
    if weight._view.place is not None or in_transform():
        return _by_operators(input, weight, bias)
    result = by_one_call(input, weight, bias)
    return F.linear(input, weight.dequantize(weight.dtype), bias) if result is None else result


def _operands(input, weight, bias=None):
    """As input or bias, a QuantizedTensor is just a number of values."""
    if isinstance(input, QuantizedTensor):
        input = input.dequantize(input.dtype)
    if isinstance(bias, QuantizedTensor):
        bias = bias.dequantize(bias.dtype)
    return input, weight, bias


def _by_operators(input, weight: QuantizedTensor, bias):
    """A product that comes as operators of ATen, which have all derivatives and batching rules."""
    check_transform(weight)
    product = torch.matmul(input, weight.transpose(-1, -2))
    return product if bias is None else product + bias


@implements(torch.ops.narrowcast.linear.default)
def _below_autograd(func, args, kwargs):
    """In a trace or under a mode, in inference mode."""
    return _C.linear_without_gradient(*args)
