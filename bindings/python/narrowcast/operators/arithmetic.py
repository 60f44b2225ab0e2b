"""Operators that have no handler of their own: arithmetic, which reads values. Arithmetic in place
and views that are no matrices of bytes are refused.
"""

import torch
from torch.utils._pytree import tree_any, tree_leaves

from narrowcast import stack_frames
from narrowcast.fsdp import torch_names
from narrowcast.operators import averages
from narrowcast.operators.common import refuse, run_on_values, value_of, written
from narrowcast.tensor import QuantizedTensor
from narrowcast.tensor.dispatch import implements

aten = torch.ops.aten


@implements(None)
def run(func, args, kwargs):
    """Runs an operator on values, unless it is refused."""
    targets = [one for one in written(func, args, kwargs) if _is_quantized(one)]
    for one in targets:
        one._store.check_written()
    writes = bool(targets)
    if reason := _reason_against(func, args, kwargs, writes):
        return refuse((args, kwargs), func, reason)
    if writes:
        return averages.run(func, args, kwargs)
    if averages.is_averaging():
        return run_on_values(func, args, kwargs, value_of)
    if torch.is_grad_enabled() and func not in _PRODUCTS:
        note_reads(args, kwargs)
    as_master = reads_masters(args, kwargs)
    return run_on_values(func, args, kwargs, lambda one: value_of(one, one.dtype, as_master))


# Those that have no handler.
_PRODUCTS = {
    *(aten.convolution.default, aten.embedding.default, aten._embedding_bag.default),
    *(aten.mkldnn_rnn_layer.default, aten._cudnn_rnn.default),
}


def note_reads(*values) -> None:
    """Weights that arithmetic reads for a gradient of theirs."""
    for leaf in tree_leaves(values):
        if _is_quantized(leaf) and leaf.requires_grad:
            leaf._store.note_arithmetic()


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


def _reason_against(func, args, kwargs, writes: bool) -> str | None:
    if _receives(func, args):
        return (
            "would receive values, and this tensor keeps codes and scales in several buffers. Let "
            "a plain tensor receive them (weight.master, or one like it), and copy_ it: that sets "
            "master and bytes"
        )
    if writes and not (func._schema.name.endswith("_") and averages.is_one(func, args)):
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


def _is_quantized(leaf) -> bool:
    return isinstance(leaf, QuantizedTensor)


def _receives(func, args) -> bool:
    """Whether a collective of torch.distributed that acts in place writes to a QuantizedTensor. The
    schemas of these operators do not say what they write to; it is their first argument.
    """
    is_receiver = func.namespace == "c10d" and func is not torch.ops.c10d.send.default
    return is_receiver and tree_any(_is_quantized, args[0])


@implements(
    torch.ops._c10d_functional.all_gather_into_tensor.default,
    aten.constant_pad_nd.default,
)
def _gather_shards(func, args, kwargs):
    """DTensor makes a full tensor of shards with these two (full_tensor(); a short shard is padded
    first). A shard that keeps its master gives that, as state dicts do: what is loaded from it is
    then the same weight to the bit.
    """
    return run_on_values(
        func, args, kwargs, lambda one: value_of(one, one.dtype, as_master=one._store.partial)
    )
