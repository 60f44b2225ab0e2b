"""The one error of narrowcast's own, and the texts of those that need more than a line.

Each says what, where, which value and what to do. `matrix` is a narrowcast.matrix.Matrix.
"""

from narrowcast._C import PluginError

PluginError.__module__ = "narrowcast"
PluginError.__doc__ = (
    "A plugin that cannot be loaded: missing, cut short, of another version, or no plugin at all."
)


def cannot_cut(matrix, what: str, at: int) -> ValueError:
    """`what`: "row" or "column"."""
    step = matrix.step[what == "column"]
    below, above = at // step * step, min(-(-at // step) * step, getattr(matrix, f"{what}s"))
    return ValueError(
        f"{matrix.describe()} cannot be cut at {what} {at}: only at multiples of {step}, the "
        f"{what} step of {matrix.format.name} in its {' and '.join(matrix.usages)} bytes. Cut at "
        f"{what} {below} or {above}, or cut the plain tensor that dequantize() makes"
    )


def cannot_join(matrix, piece: int, what: str, begin: int) -> ValueError:
    """`what`: "row" or "column"."""
    step = matrix.step[what == "column"]
    return ValueError(
        f"{matrix.describe()} cannot be joined from these pieces: piece {piece} would begin at "
        f"{what} {begin}, and blocks of {matrix.format.name} begin at multiples of {step} {what}s. "
        f"Let each piece but the last have a multiple of {step} {what}s, or join the plain tensors "
        "that dequantize() makes"
    )


def cannot_shard(matrix, shards: int, shard_rows: int) -> ValueError:
    step, name = matrix.format.shard_row_step, matrix.format.name
    multiple = step * shards
    rows = -(-matrix.rows // multiple) * multiple
    return ValueError(
        f"{matrix.describe()} cannot be cut into {shards} shards: a shard would have {shard_rows} "
        f"rows, and {name} can be cut at multiples of {step} rows only (its row step). Use {rows} "
        f"rows (a multiple of {multiple}), a number of ranks that leaves multiples of {step}, or "
        "a format with a smaller row step; or leave the weight out with nc.convert's filter"
    )


def cannot_shard_columns(description: str, dim: int) -> NotImplementedError:
    return NotImplementedError(
        f"{description}: only rows can be sharded (dimension 0), not dimension {dim}, because the "
        "gathered bytes of another cut do not lie in the order of the whole. Use Shard(0), or "
        "leave the weight out with nc.convert's filter"
    )


def cannot_write(matrix, box) -> NotImplementedError:
    columns = f", columns {box.column} to {box.column_end}" * (box.columns < matrix.columns)
    return NotImplementedError(
        f"{matrix.describe()}: rows {box.row} to {box.row_end}{columns} cannot be written alone, "
        "because a scale spans the whole tensor and no master is kept (nc.convert keeps one). "
        "Write the whole tensor"
    )


def stale_shard(matrix) -> ValueError:
    return ValueError(
        f"{matrix.describe()}: this shard has been written to, and a scale of "
        f"{matrix.format.name} spans the whole tensor; so its bytes wait for the next gather "
        "(a forward, unshard()) or optimizer step, which reduces the amax over all shards. Read "
        "it after one"
    )


def usage_absent(matrix, usage: str) -> ValueError:
    return ValueError(
        f"{matrix.describe()} has no {usage} bytes: ask for them where it is made "
        f"(nc.quantize(..., {usage}=True))"
    )


def usage_not_gathered(matrix, usage: str) -> ValueError:
    return ValueError(
        f"{matrix.describe()}: a matrix product needs the {usage} bytes, and this all-gather "
        f"carried {' and '.join(sorted(matrix.filled))} only. With activation checkpointing, an "
        "explicit unshard(), set_reshard_after_backward(False) or a change of resharding at run "
        "time, FSDP2 does not say what a gather is for. Use nc.convert(..., recompute=True), "
        "which has every gather carry both usages"
    )


def freed(matrix) -> ValueError:
    return ValueError(
        f"{matrix.describe()}: its bytes have been freed, because FSDP2 has resharded its module. "
        "Use it within the module's forward or backward, or call the module's unshard() first"
    )


def has_no_memory(matrix, name: str) -> NotImplementedError:
    return NotImplementedError(
        f"{matrix.describe()}: {name} reads the memory of values, and this tensor keeps codes and "
        f"scales in several buffers. Use dequantize(), and {name} of the plain tensor that it makes"
    )


def replaces_quantized(matrix) -> TypeError:
    return TypeError(
        f"{matrix.describe()}: module.float(), .half(), .bfloat16() and .double() would put a "
        "plain tensor in the place of a quantized weight. Use module.to(dtype), which changes the "
        "weight's logical dtype and keeps its bytes"
    )


def replaces_data(matrix) -> NotImplementedError:
    return NotImplementedError(
        f"{matrix.describe()}: assigning to .data would leave its bytes as they are. Use "
        "weight.copy_(value) under torch.no_grad(), which sets the bytes and the master"
    )
