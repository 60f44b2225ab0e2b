"""Operators that do not act on the bytes: arithmetic, which is in no table, reads values;
arithmetic in place, views of other shapes and other orders of rows and columns are refused.
"""

import torch
from torch.utils._pytree import tree_any, tree_leaves

from narrowcast import stack_frames
from narrowcast.fsdp import torch_names
from narrowcast.operators import averages, table
from narrowcast.operators.common import bound, refuse, run_on_values, value_of, written
from narrowcast.tensor import QuantizedTensor, distributed_parts
from narrowcast.tensor.dispatch import implements


@implements(*(None, *table.REARRANGE.operators, *table.SET.operators, *table.AVERAGE.operators))
def run(func, args, kwargs):
    """Runs an operator on values, unless it is refused."""
    if reason := _reason_against(func, args, kwargs):
        return refuse((args, kwargs), func, reason)
    if func._schema.is_mutable and _writes_quantized(func, args, kwargs):
        return averages.run(func, args, kwargs)
    if averages.is_averaging():
        return run_on_values(func, args, kwargs, value_of)
    as_master = reads_masters(args, kwargs)
    return run_on_values(func, args, kwargs, lambda one: value_of(one, one.dtype, as_master))


_CALL = torch.nn.Module.__call__.__code__  # of every module
# Nodes of a backward that compute nothing with weights, and run hooks of users.
_HOOKED = "torch::autograd::AccumulateGrad", torch_names.POST_BACKWARD


def reads_masters(*values) -> bool:
    """Whether arithmetic on some values reads the masters of weights, and not their decoded values:
    in an average, and outside of every forward and backward. A forward is the call of a module or
    of an autograd.Function, and what records gradients or is traced.
    """
    leaves = [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]
    stores = [leaf._store for leaf in leaves if isinstance(leaf, QuantizedTensor)]
    node = torch._C._current_autograd_node()
    return averages.is_averaging() or (
        any(store.master and store.bytes.is_plain for store in stores)
        and not (torch.is_grad_enabled() and any(leaf.requires_grad for leaf in leaves))
        and (torch._C._is_fwd_grad_enabled() or torch.is_inference_mode_enabled())
        and (node is None or node.name() in _HOOKED)
        and all(frame.f_code is not _CALL for frame in stack_frames.frames())
    )


_INDEX = torch.ops.aten.index.Tensor, torch.ops.aten.index_select.default
_OF_EXPERTS = (
    ". Products read experts one by one (weight[int(i)]) or all together: by torch.bmm, or by "
    'F.grouped_mm, which transformers calls with experts_implementation="grouped_mm"'
)


def _reason_against(func, args, kwargs) -> str | None:
    if func in table.REARRANGE.operators:
        return (
            "would take rows or columns in another order, or more than once, so their blocks would "
            "be others. Use dequantize() and the plain tensor that it makes, or slices and cat"
            + _OF_EXPERTS
            * (args[0].dim() == 3 and func in _INDEX)
        )
    if func in table.SET.operators:
        return (
            "would replace one storage, and the bytes lie in several buffers. Make a new tensor, "
            "or copy_ into this one"
        )
    if torch.Tag.inplace_view in func.tags:
        return "would give this very tensor another shape. Use the operation that returns a view"
    if func.namespace == "c10d" and _receives_quantized(func, args, kwargs):
        return (
            "would receive values, and this tensor keeps codes and scales in several buffers. Let "
            "a plain tensor receive them (weight.master, or one like it), and copy_ it: that sets "
            "master and bytes"
        )
    if (
        func._schema.is_mutable
        and _writes_quantized(func, args, kwargs)
        and (not func._schema.name.endswith("_") or not averages.is_one(func, args, kwargs))
    ):
        return (
            "would change values in place, and the bytes of a block depend on all its values. The "
            "optimizer of such weights is nc.FusedAdam, averages are torch's AveragedModel or, of "
            "two such weights with masters, weight.lerp_(other, step). Elsewhere compute with a "
            "plain tensor (weight.master, where there is one, or dequantize()) and copy_ the "
            "result: that sets master and bytes"
        )
    if func.is_view:
        return (
            "has no meaning for the bytes, which lie in blocks. Use dequantize() and the plain "
            "tensor that it makes"
        )
    return None


def _writes_quantized(func, args, kwargs) -> bool:
    """Whether an argument that the operator writes to is a QuantizedTensor, alone or in a list."""
    return any(isinstance(leaf, QuantizedTensor) for leaf in written(func, args, kwargs))


def _receives_quantized(func, args, kwargs) -> bool:
    """Whether a collective of torch.distributed that acts in place writes to a QuantizedTensor. The
    schemas of these operators do not say what they write to, but call it `tensors`, and `output...`
    where there are inputs beside.
    """
    if func._schema.name == "c10d::send":
        return False
    values = bound(func, args, kwargs).items()
    received = [value for name, value in values if name == "tensors" or name.startswith("output")]
    return tree_any(lambda leaf: isinstance(leaf, QuantizedTensor), received)


@implements(*table.FULL.operators)
def _gather_shards(func, args, kwargs):
    """DTensor makes a full tensor of shards with these two (full_tensor(); a short shard is padded
    first). A shard that keeps its master gives that, as state dicts do: what is loaded from it is
    then the same weight to the bit. A short part that distribute_tensor is to scatter is padded as
    the bytes that it is.
    """
    first = args[0]
    if isinstance(getattr(first, "_view", None), distributed_parts.ShortView):
        shape = func(torch.empty(first.shape, device="meta"), *args[1:], **kwargs).shape
        return distributed_parts.padded(first, tuple(shape))

    return run_on_values(
        func, args, kwargs, lambda one: value_of(one, one.dtype, as_master=one._store.partial)
    )
