"""F.linear with a quantized weight: one call of bindings/matmul/linear.cpp, derivative included."""

import torch
import torch.nn.functional as F

from narrowcast import _C
from narrowcast.tensor import QuantizedTensor, compiling
from narrowcast.tensor.dispatch import handles, implements, in_transform
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


def by_one_call(input, weight, bias) -> torch.Tensor | None:
    """The product of a QuantizedTensor or a MasterWeight whose bytes are fresh. None: no matrix
    product of float32, bfloat16 or float16, or one of a nest of such.
    """
    view = weight._view
    is_scaled = view.store.config.matmul == "scaled"
    if _C.is_watched():
        compiling.check_export(weight.describe())
        return _C.linear(input, weight, bias, is_scaled)
    return _C.linear(input, weight, bias, is_scaled, view.operand(), view.key if is_scaled else 0)


def check_transform(weight) -> None:
    """NotImplementedError of a weight whose products are scaled."""
    if weight.config.matmul == "scaled":
        raise NotImplementedError(
            f"{weight.describe()}: scaled products are those of F.linear with the weight itself, "
            "outside of torch.func's transforms and forward-mode differentiation. Convert with "
            'matmul="dequantized" for others'
        )


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
