"""F.linear with a quantized weight: decoded to the activation's dtype, rowwise in the forward and
columnwise in the backward.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from narrowcast import library
from narrowcast.tensor import LOGICAL_DTYPES, QuantizedTensor


def linear(input, weight, bias=None):
    """torch.nn.functional.linear where at least one operand is a QuantizedTensor.

    input: [..., in_features]; weight: [out_features, in_features]; bias: [out_features] or None.
    The product is in the dtype of the input, or in autocast's.
    """
    if isinstance(input, QuantizedTensor):
        input = input.dequantize(input.dtype)
    if isinstance(bias, QuantizedTensor):
        bias = bias.dequantize(bias.dtype)
    if not isinstance(weight, QuantizedTensor):
        return F.linear(input, weight, bias)
    if weight._matrix.awaited:
        library.leave_graph()
    if torch.is_autocast_enabled(input.device.type):
        dtype = torch.get_autocast_dtype(input.device.type)
        input, bias = input.to(dtype), None if bias is None else bias.to(dtype)
    if weight.dim() != 2 or input.dtype not in LOGICAL_DTYPES:
        return F.linear(input, weight.dequantize(weight.dtype), bias)
    if input.shape[-1:] != weight.shape[1:]:
        raise ValueError(
            f"{weight.describe()}: the last dimension of an input of shape {tuple(input.shape)} is "
            f"not {weight.shape[1]}"
        )
    return _QuantizedLinear.apply(input, weight, bias)


class _QuantizedLinear(torch.autograd.Function):
    """Saves the weight itself, never a decoded copy: FSDP2 gathers its bytes anew for the
    backward.
    """

    @staticmethod
    def forward(ctx, input, weight, bias):
        ctx.save_for_backward(input, weight)
        return F.linear(input, weight.decode(input.dtype, "rowwise"), bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        input, weight = ctx.saved_tensors
        wants_input, wants_weight, wants_bias = ctx.needs_input_grad
        count = gradient.shape[:-1].numel()
        rows = gradient.reshape(count, weight.shape[0])
        input_gradient = weight_gradient = bias_gradient = None
        if wants_input:
            input_gradient = gradient @ weight.decode(gradient.dtype, "columnwise")
        if wants_weight:
            weight_gradient = rows.t() @ input.reshape(count, weight.shape[1])
        if wants_bias:
            bias_gradient = rows.sum(0)
        return input_gradient, weight_gradient, bias_gradient
