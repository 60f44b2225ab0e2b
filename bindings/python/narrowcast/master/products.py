"""What reads a weight's bytes: products of matrices, as torch's functions and, where a transform
of torch.func has hidden the weight from these, as the operators that they come to. A gradient is
the value's.
"""

import torch
import torch.nn.functional as F

from narrowcast.master import casts
from narrowcast.master.weight import DECODING, MasterWeight, handles, mapped
from narrowcast.tensor import QuantizedTensor, dispatch
from narrowcast.tensor.product import PRODUCTS, by_one_call, check_transform

Tensor = torch.Tensor


class Narrowed(torch.autograd.Function):
    """A weight as its bytes: a QuantizedTensor, of which handlers know products. Its derivative is
    the identity.
    """

    @staticmethod
    def forward(ctx, weight: MasterWeight) -> QuantizedTensor:
        ctx.value, ctx.version = weight.value, weight.value._version
        return narrowed(weight)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> torch.Tensor:
        if ctx.value._version != ctx.version:
            raise RuntimeError(
                "a weight that a gradient needs was written to between the forward and its backward"
            )
        return gradient


@dispatch.enter(DECODING, [torch.ops.narrowcast.linear.default])
def narrowed(weight: MasterWeight) -> QuantizedTensor:
    """The same outside of autograd."""
    casts.before_product(weight.cell)
    return QuantizedTensor(weight._view, weight.shape, weight.dtype)


@handles(F.linear)
def _linear(func, args, kwargs):
    """By one call of C++, which saves the weight itself, where that can be."""
    result = None if dispatch.in_transform() else _by_one_call(*args, **kwargs)
    return _product(func, args, kwargs) if result is None else result


def _by_one_call(input, weight, bias=None):
    if [isinstance(one, MasterWeight) for one in (input, weight, bias)] != [False, True, False]:
        return None
    casts.before_product(weight.cell)
    return None if weight._view.place is not None else by_one_call(input, weight, bias)


@handles(
    *(torch.matmul, Tensor.matmul, Tensor.__matmul__, Tensor.__rmatmul__, torch.mm, Tensor.mm),
    *(torch.bmm, Tensor.bmm, torch.mv, Tensor.mv, torch.addmm, Tensor.addmm, torch.baddbmm),
    *(Tensor.baddbmm, torch.addmv, Tensor.addmv, torch.addbmm, Tensor.addbmm, torch.dot),
    *(Tensor.dot, torch.inner, Tensor.inner, torch.tensordot, torch.einsum, torch.chain_matmul),
    *(torch.linalg.multi_dot, torch._grouped_mm, F.grouped_mm, F.bilinear, F.embedding),
    *(F.embedding_bag, F.conv1d, F.conv2d, F.conv3d),
    *(F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d),
    # Autocast would cast values before the operators within.
    *(torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu),
    *(torch.lstm_cell, torch.gru_cell, torch.rnn_tanh_cell, torch.rnn_relu_cell),
    *(F.multi_head_attention_forward, torch._native_multi_head_attention),
    torch._transformer_encoder_layer_fwd,
)
def _product(func, args, kwargs):
    if dispatch.in_transform():
        mapped(check_transform, (args, kwargs))
        return dispatch.as_torch_does(func, args, kwargs)
    if torch.jit.is_tracing():  # whose graph is to hold operators, and no function of autograd
        return dispatch.as_torch_does(func, args, kwargs)
    if isinstance(out := kwargs.get("out"), MasterWeight):
        return out.copy_(func(*args, **{**kwargs, "out": None}))
    return func(*mapped(_operand, args), **mapped(_operand, kwargs))


def _operand(weight: MasterWeight) -> QuantizedTensor:
    if torch.is_grad_enabled():
        return Narrowed.apply(weight)
    return narrowed(weight).requires_grad_(weight.requires_grad)  # by which matmul chooses its way


@dispatch.enter(DECODING, PRODUCTS)
def _decoded(weight: MasterWeight) -> torch.Tensor:
    """The value that a product of this pass reads."""
    casts.before_product(weight.cell)
    view = weight._view
    usage = view.own_usage(view.store.product_usage(dispatch.in_backward()))
    value = view.decode(weight.dtype, usage)
    return value if value.shape == weight.shape else value.reshape(weight.shape)
