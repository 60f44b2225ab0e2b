"""Where a weight may be cut into shards. Every rank asks this of the whole weight, so all ranks get
the same answer.
"""

import torch

from narrowcast.fsdp import torch_names
from narrowcast.registry import Format
from narrowcast.tensor.dispatch import as_torch_does
from narrowcast.tensor.region import matrix_shape


def chunk(tensor, chunks: int, dim: int = 0):
    """torch.chunk of a QuantizedTensor: fully_shard cuts a weight with it, and nowhere else says
    into how many shards.

    ValueError, with the row step and the ways out, if a cut would divide a block;
    NotImplementedError for parallelize_module, and if fully_shard cuts along another dimension than
    the first, whose pieces are views like any other.
    """
    if torch_names.is_parallelizing():
        raise NotImplementedError(
            f"{tensor.describe()}: parallelize_module would cut bytes that are made already. Call "
            "it for the plain model, then nc.convert, then fully_shard"
        )
    if dim % tensor.dim() != 0:
        if torch_names.is_sharding():
            raise _cannot_shard_columns(tensor.describe(), dim)
    elif torch_names.is_sharding() or -(-tensor.shape[0] // chunks) < tensor.shape[0]:
        store = tensor._store
        check_shards(store.describe(), store.format, store.rows, tensor.shape, chunks)
        store.refresh()  # all shards begin with bytes of one amax
    return as_torch_does(torch.chunk, (tensor, chunks, dim), {})


def check_shards(description: str, format: Format, rows: int, shape, shards: int) -> None:
    """ValueError unless a weight of so many rows as a matrix can be cut into so many shards of
    ceil(shape[0] / shards).
    """
    if shards == 1 or rows == 0:
        return
    is_matrix, step = len(shape) >= 2, format.shard_row_step
    shard_rows = -(-shape[0] // shards) * (rows // shape[0]) if is_matrix else 1
    if is_matrix and shard_rows % step == 0:
        return
    multiple = step * shards
    enough = -(-rows // multiple) * multiple
    raise ValueError(
        f"{description} cannot be cut into {shards} shards: a shard would have {shard_rows} rows, "
        f"and {format.name} can be cut at multiples of {step} rows only (its row step). Use "
        f"{enough} rows (a multiple of {multiple}), a number of ranks that leaves multiples of "
        f"{step}, or a format with a smaller row step; or leave the weight out with nc.convert's "
        "filter"
    )


def check_sharded(managed, name: str, format: Format) -> None:
    """NotImplementedError unless an FSDPParam is sharded along rows, and by fully_shard alone;
    ValueError unless its shards can be in a format.
    """
    if managed.is_dtensor:
        raise NotImplementedError(
            f"{name} is sharded by fully_shard and by tensor parallelism. Call nc.convert between "
            "parallelize_module and fully_shard"
        )
    if managed.fsdp_placement.dim != 0:
        raise _cannot_shard_columns(name, managed.fsdp_placement.dim)
    shape = torch_names.whole_shape(managed)
    rows, columns = matrix_shape(shape)
    description = f"{name}: {rows}x{columns} matrix in {format.name}"
    check_shards(description, format, rows, shape, torch_names.world(managed))


def _cannot_shard_columns(description: str, dim: int) -> NotImplementedError:
    return NotImplementedError(
        f"{description}: only rows can be sharded (dimension 0), not dimension {dim}, because the "
        "gathered bytes of another cut do not lie in the order of the whole. Use Shard(0), or "
        "leave the weight out with nc.convert's filter"
    )
