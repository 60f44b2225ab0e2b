"""Weights in training that are their own masters: a tensor over a float32 value to torch, narrow
bytes to products of matrices. The bytes are a cache of the value.

    value    a plain float32 tensor, which all of torch's operators read and write (weight.py)
      |      casts.py: five occasions, no others
    bytes    a Store, of which the cell knows how fresh it is (cell.py)
      |      products.py: what reads bytes; nothing else does
    F.linear, matmul, ...

Under FSDP2 a shard's bytes are gathered as those of any quantized weight (narrowcast.fsdp), and
what arrives is a QuantizedTensor, without a master.
"""

from narrowcast.master import memory, products  # enter handlers
from narrowcast.master.casts import note_write
from narrowcast.master.weight import MasterWeight

__all__ = ["MasterWeight", "memory", "note_write", "products"]
