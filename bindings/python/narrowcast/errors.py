"""The one error of narrowcast's own, and the texts of those that need more than a line.

Each says what, where, which value and what to do. `store` is a narrowcast.tensor.store.Store.
"""

from narrowcast._C import PluginError

PluginError.__module__ = "narrowcast"
PluginError.__doc__ = (
    "A plugin that cannot be loaded: missing, cut short, of another version, or no plugin at all."
)


def cannot_cut(store, what: str, at: int) -> ValueError:
    """`what`: "row" or "column"."""
    step = store.step[what == "column"]
    below, above = at // step * step, min(-(-at // step) * step, getattr(store, f"{what}s"))
    return ValueError(
        f"{store.describe()} cannot be cut at {what} {at}: only at multiples of {step}, the "
        f"{what} step of {store.format.name} in its {' and '.join(store.bytes.usages)} bytes. Cut "
        f"at {what} {below} or {above}, or cut the plain tensor that dequantize() makes"
    )


def cannot_join(store, piece: int, what: str, begin: int) -> ValueError:
    """`what`: "row" or "column"."""
    step = store.step[what == "column"]
    return ValueError(
        f"{store.describe()} cannot be joined from these pieces: piece {piece} would begin at "
        f"{what} {begin}, and blocks of {store.format.name} begin at multiples of {step} {what}s. "
        f"Let each piece but the last have a multiple of {step} {what}s, or join the plain tensors "
        "that dequantize() makes"
    )


def cannot_shard(description: str, format, rows: int, shards: int, shard_rows: int) -> ValueError:
    step, name = format.shard_row_step, format.name
    multiple = step * shards
    enough = -(-rows // multiple) * multiple
    return ValueError(
        f"{description} cannot be cut into {shards} shards: a shard would have {shard_rows} "
        f"rows, and {name} can be cut at multiples of {step} rows only (its row step). Use "
        f"{enough} rows (a multiple of {multiple}), a number of ranks that leaves multiples of "
        f"{step}, or a format with a smaller row step; or leave the weight out with nc.convert's "
        "filter"
    )


def cannot_shard_columns(description: str, dim: int) -> NotImplementedError:
    return NotImplementedError(
        f"{description}: only rows can be sharded (dimension 0), not dimension {dim}, because the "
        "gathered bytes of another cut do not lie in the order of the whole. Use Shard(0), or "
        "leave the weight out with nc.convert's filter"
    )


def cannot_write(store, region) -> NotImplementedError:
    columns = f", columns {region.column} to {region.column_end}" * (region.columns < store.columns)
    return NotImplementedError(
        f"{store.describe()}: rows {region.row} to {region.row_end}{columns} cannot be written "
        "alone, because a scale spans the whole tensor and no master is kept (nc.convert keeps "
        "one). Write the whole tensor"
    )


def stale_shard(store) -> ValueError:
    return ValueError(
        f"{store.describe()}: this shard has been written to, and a scale of "
        f"{store.format.name} spans the whole tensor; so its bytes wait for the next gather "
        "(a forward, unshard()) or optimizer step, which reduces the amax over all shards. Read "
        "it after one"
    )


def usage_absent(store, usage: str) -> ValueError:
    if store.gather is not None:
        there = " and ".join(store.bytes.usages)
        return ValueError(
            f"{store.describe()}: a matrix product needs the {usage} bytes, and this all-gather "
            f"carried {there} only. With activation checkpointing, an explicit unshard(), "
            "set_reshard_after_backward(False) or a change of resharding at run time, FSDP2 does "
            "not say what a gather is for. Use nc.convert(..., recompute=True), which has every "
            "gather carry both usages"
        )
    return ValueError(
        f"{store.describe()} has no {usage} bytes: ask for them where it is made "
        f"(nc.quantize(..., {usage}=True)); a part of a weight that FSDP2 has gathered has those "
        "of the other pass with nc.convert(..., recompute=True)"
    )


def copied_in_a_graph(store) -> ValueError:
    return ValueError(
        f"{store.describe()}: a compiled function cannot use a part of it, or copy it, because its "
        "graph would keep the copy for the backward, whose gather brings other bytes. Use "
        "nc.convert(..., recompute=True), which has every gather carry both usages, or "
        "dequantize()"
    )


def freed(store) -> ValueError:
    return ValueError(
        f"{store.describe()}: its bytes have been freed, because FSDP2 has resharded its module. "
        "Use it within the module's forward or backward, or call the module's unshard() first"
    )


def has_no_memory(store, name: str) -> NotImplementedError:
    return NotImplementedError(
        f"{store.describe()}: {name} reads the memory of values, and this tensor keeps codes and "
        f"scales in several buffers. Use dequantize(), and {name} of the plain tensor that it makes"
    )


def replaces_quantized(store) -> TypeError:
    return TypeError(
        f"{store.describe()}: module.float(), .half(), .bfloat16() and .double() would put a "
        "plain tensor in the place of a quantized weight. Use module.to(dtype), which changes the "
        "weight's logical dtype and keeps its bytes"
    )


def replaces_data(store) -> NotImplementedError:
    return NotImplementedError(
        f"{store.describe()}: assigning to .data would leave its bytes as they are. Use "
        "weight.copy_(value) under torch.no_grad(), which sets the bytes and the master"
    )
