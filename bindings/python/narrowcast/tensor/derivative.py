"""The derivatives of decoding: identities."""

import torch


class Dequantize(torch.autograd.Function):
    """A QuantizedTensor's value in a dtype, decoded from the bytes of one usage."""

    @staticmethod
    def forward(weight, dtype, usage):
        return weight.decode(dtype, usage)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.dtype = output.dtype

    @staticmethod
    def vmap(info, in_dims, weight, dtype, usage):
        return weight.decode(dtype, usage), None

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None, None

    @staticmethod
    def jvp(ctx, tangent, dtype, usage):
        return tangent.to(ctx.dtype, copy=True)
