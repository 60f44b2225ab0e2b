"""Where a weight may be cut into shards. Every rank asks this of the whole weight, so all ranks get
the same answer.
"""

from __future__ import annotations

import torch

from narrowcast import errors, fsdp
from narrowcast.matrix import Matrix


def chunk(tensor, chunks: int, dim: int = 0):
    """torch.chunk of a QuantizedTensor: fully_shard cuts a weight with it, and nowhere else says
    into how many shards.

    ValueError, with the row step and the ways out, if a cut would divide a block;
    NotImplementedError if fully_shard cuts along another dimension than the first, whose pieces are
    views like any other.
    """
    if dim % tensor.dim() != 0:
        if fsdp.is_sharding():
            raise errors.cannot_shard_columns(tensor.describe(), dim)
        with torch._C.DisableTorchFunctionSubclass():
            return torch.chunk(tensor, chunks, dim)
    matrix = tensor._matrix
    check_shards(matrix, tensor.shape, chunks)
    matrix.refresh()  # all shards begin with bytes of one amax
    matrix.shards = chunks
    with torch._C.DisableTorchFunctionSubclass():
        return torch.chunk(tensor, chunks, 0)


def check_shards(matrix: Matrix, shape, shards: int) -> None:
    """ValueError unless a weight can be cut into so many shards of ceil(shape[0] / shards)."""
    if shards == 1 or matrix.rows == 0:
        return
    if len(shape) < 2:
        raise errors.cannot_shard(matrix, shards, 1)
    rows = -(-shape[0] // shards) * (matrix.rows // shape[0])
    if rows % matrix.format.shard_row_step != 0:
        raise errors.cannot_shard(matrix, shards, rows)
