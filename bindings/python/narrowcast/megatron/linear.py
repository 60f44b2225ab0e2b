"""A column-parallel product with Megatron's communication: gathers and reductions run while the
machine multiplies.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from narrowcast import _C
from narrowcast.tensor import QuantizedTensor


def linear(
    input: torch.Tensor,
    weight: QuantizedTensor,
    allreduce_dgrad: bool,
    sequence_parallel: bool,
    group: dist.ProcessGroup | None,
) -> torch.Tensor:
    """The product of an input [sequence, batch, in_features] with a rank's part of a weight,
    [out_features, in_features]: [sequence, batch, out_features], in the input's dtype, or in
    autocast's.

    allreduce_dgrad    the input is the same on all ranks: its gradient is summed over them
    sequence_parallel  the input is this rank's part of the sequence: the ranks' parts are gathered,
                       and the gradient's parts are summed and scattered
    group              the ranks that hold the other parts of the weight
    """
    if not (allreduce_dgrad or sequence_parallel):
        return F.linear(input, weight)
    device = input.device.type
    if torch.is_autocast_enabled(device):
        input = input.to(torch.get_autocast_dtype(device))
    return _Linear.apply(input, weight, sequence_parallel, group)


class _Linear(torch.autograd.Function):
    """The three products of F.linear (bindings/matmul/layer.hpp), in the order of Megatron's own:
    of the backward's two that of the input comes first, and its reduction runs beside the other.
    """

    @staticmethod
    def forward(ctx, input, weight, sequence_parallel, group):
        ctx.sequence_parallel, ctx.group = sequence_parallel, group
        ctx.is_scaled = weight._store.config.matmul == "scaled"
        with_weight = weight.requires_grad
        whole = _gather(input, group)[0] if sequence_parallel else input
        output, kept = _C.layer_forward(whole, weight, None, ctx.is_scaled, keep=with_weight)
        # Of a sequence, this rank's part: the backward gathers it again, as Megatron's does. A
        # scaled product keeps the bytes of the whole.
        if with_weight and not ctx.is_scaled:
            kept = [input]
        ctx.save_for_backward(weight, *kept)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        weight, *kept = ctx.saved_tensors
        of_input, of_weight = ctx.needs_input_grad[:2]
        gathering = None
        if of_weight and ctx.sequence_parallel and not ctx.is_scaled:
            (part,) = kept
            whole, gathering = _gather(part, ctx.group, async_op=True)
            kept = [whole]
        layer = _C.LayerBackward(weight, gradient, ctx.is_scaled, of_input, of_weight)
        input_gradient = weight_gradient = reducing = None
        if of_input:
            input_gradient = layer.input_gradient().contiguous()
            reduce = _reduce_scatter if ctx.sequence_parallel else _all_reduce
            input_gradient, reducing = reduce(input_gradient, ctx.group)
        if gathering is not None:
            gathering.wait()
        if of_weight:
            weight_gradient = layer.weight_gradient(kept)
        if reducing is not None:
            reducing.wait()
        return input_gradient, weight_gradient, None, None


def _gather(part: torch.Tensor, group, async_op: bool = False):
    """The parts of all ranks along the first dimension, and the work that brings them."""
    whole = part.new_empty(len(part) * group.size(), *part.shape[1:])
    return whole, dist.all_gather_into_tensor(whole, part.contiguous(), group, async_op)


def _all_reduce(gradient: torch.Tensor, group):
    return gradient, dist.all_reduce(gradient, group=group, async_op=True)


def _reduce_scatter(gradient: torch.Tensor, group):
    """This rank's part, along the first dimension, of the sum over ranks, and the work that brings
    it.
    """
    part = gradient.new_empty(len(gradient) // group.size(), *gradient.shape[1:])
    return part, dist.reduce_scatter_tensor(part, gradient, group=group, async_op=True)
