"""Where a weight may be cut into shards. Every rank asks this of the whole weight, so all ranks get
the same answer.
"""

from __future__ import annotations

import torch

from narrowcast import errors
from narrowcast.fsdp import torch_names
from narrowcast.registry import Format


def chunk(tensor, chunks: int, dim: int = 0):
    """torch.chunk of a QuantizedTensor: fully_shard cuts a weight with it, and nowhere else says
    into how many shards.

    ValueError, with the row step and the ways out, if a cut would divide a block;
    NotImplementedError if fully_shard cuts along another dimension than the first, whose pieces are
    views like any other.
    """
    if dim % tensor.dim() != 0:
        if torch_names.is_sharding():
            raise errors.cannot_shard_columns(tensor.describe(), dim)
    else:
        store = tensor._store
        check_shards(store.describe(), store.format, store.rows, tensor.shape, chunks)
        store.refresh()  # all shards begin with bytes of one amax
    with torch._C.DisableTorchFunctionSubclass():
        return torch.chunk(tensor, chunks, dim)


def check_shards(description: str, format: Format, rows: int, shape, shards: int) -> None:
    """ValueError unless a weight of so many rows as a matrix can be cut into so many shards of
    ceil(shape[0] / shards).
    """
    if shards == 1 or rows == 0:
        return
    if len(shape) < 2:
        raise errors.cannot_shard(description, format, rows, shards, 1)
    shard_rows = -(-shape[0] // shards) * (rows // shape[0])
    if shard_rows % format.shard_row_step != 0:
        raise errors.cannot_shard(description, format, rows, shards, shard_rows)


def check_sharded(parameter, name: str) -> None:
    """NotImplementedError unless a DTensor is sharded by fully_shard alone, and along rows."""
    _, managed = torch_names.managed(parameter)
    if managed is None or managed.is_dtensor:
        raise NotImplementedError(
            f"{name} is a DTensor that is not sharded by fully_shard alone (tensor parallelism, "
            f"for example), with placements {parameter.placements}: only fully_shard's own "
            "sharding is supported. Leave it out with filter"
        )
    if managed.fsdp_placement.dim != 0:
        raise errors.cannot_shard_columns(name, managed.fsdp_placement.dim)
