"""Operators that have no handler: arithmetic, which reads decoded values. Arithmetic in place and
views that are no matrices of bytes are refused.
"""

import torch
from torch.utils._pytree import tree_leaves

from narrowcast.operators.common import refuse, run_on_values
from narrowcast.tensor import QuantizedTensor
from narrowcast.tensor.dispatch import implements, written_leaves
from narrowcast.tensor.product import PRODUCTS


@implements(None)
def run(func, args, kwargs):
    """Runs an operator on values, unless it is refused."""
    every = written_leaves(func, args, kwargs)
    targets = [one for one in every if isinstance(one, QuantizedTensor)]
    for one in targets:
        one._store.check_written()
    if targets:
        refuse(
            targets,
            func,
            "would change values, and the bytes of a block depend on all its values. These bytes "
            "are those of a frozen weight, which loads (copy_) and merges (w += x, w -= x) change "
            "alone. Weights that nc.convert(..., trainable=True) makes take every write",
        )
    if func.is_view:
        refuse(
            args,
            func,
            "has no meaning for the bytes, which lie in blocks. Use dequantize() and the plain "
            "tensor that it makes",
        )
    if torch.is_grad_enabled() and func not in PRODUCTS:
        note_reads(args, kwargs)
    return run_on_values(func, args, kwargs)


def note_reads(*values) -> None:
    """Weights that arithmetic reads for a gradient of theirs."""
    for leaf in tree_leaves(values):
        if isinstance(leaf, QuantizedTensor) and leaf.requires_grad:
            leaf._store.note_arithmetic()
