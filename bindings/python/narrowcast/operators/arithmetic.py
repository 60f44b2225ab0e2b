"""Operators that have no handler: arithmetic, which reads decoded values. Arithmetic in place and
views that are no matrices of bytes are refused.
"""

import torch
from torch.utils._pytree import tree_any, tree_leaves

from narrowcast.operators.common import refuse, run_on_values, written
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
    if torch.is_grad_enabled() and func not in _PRODUCTS:
        note_reads(args, kwargs)
    return run_on_values(func, args, kwargs)


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


def _reason_against(func, args, kwargs, writes: bool) -> str | None:
    if writes or _receives(func, args):
        return (
            "would change values, and the bytes of a block depend on all its values. These bytes "
            "are those of a frozen weight, which loads (copy_) and merges (w += x, w -= x) change "
            "alone. Weights that nc.convert(..., trainable=True) makes take every write"
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
