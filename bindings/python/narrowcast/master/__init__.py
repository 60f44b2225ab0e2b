"""Weights in training that are their own masters: a float32 tensor to torch, narrow bytes to
products of matrices. The bytes are a cache of the value.

    optimizer, EMA, init, load, w[...] = x      any operator of torch's writes to
          |
          v
    value      float32, a plain tensor           weight.py: MasterWeight(value, cell), of whole
          |                                        weights and of shards; each view of a memory has
          |                                        one, and all of them one cell and one count of
          |                                        writes, torch's own (operators.py)
          |  casts.py: four occasions, no others
          v
    bytes      a Store, made for the reader      cell.py: Cell, whose store says of which version
          |                                        of the value its bytes are
          v
    F.linear, matmul, ...                        products.py: what reads bytes; nothing else does

Under FSDP2 a shard's bytes are gathered as those of any quantized weight (narrowcast.fsdp), and
what arrives is a QuantizedTensor, without a master.
"""

import os

from narrowcast.master import products  # enters handlers
from narrowcast.master.casts import note_write
from narrowcast.master.weight import MasterWeight

__all__ = ["MasterWeight", "is_chosen", "note_write", "products"]


def is_chosen() -> bool:
    """Whether nc.convert makes such weights: of float32 ones that are trained."""
    return os.environ.get("NARROWCAST_MASTER_WEIGHTS", "0") not in ("", "0")
