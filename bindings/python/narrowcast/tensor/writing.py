"""What a write of values does to a matrix: to its master, or to its bytes where none is kept."""

import torch

from narrowcast.tensor import buffers, casting, compiling, memory
from narrowcast.tensor.region import Region
from narrowcast.tensor.store import Store


def write(store: Store, region: Region, value: torch.Tensor) -> None:
    """Sets a region to a value, [rows, columns] of float32, bfloat16 or float16. With a master,
    that is set and the bytes become stale; without, they are made at once. The value that a
    saved state has just brought changes nothing: its bytes may be others than a new value's.
    ValueError if FSDP2 has freed the bytes.
    """
    store.check_there()
    compiling.check_write(store.describe())
    if store.master is not None:
        _write_master(store, region, value)
    elif region == store.whole and not store.needs_others:
        casting.cast_value(store.bytes, value)
        store.used = store.rows
    elif (
        store.place is None and not store.format.tensor_amax
    ):  # a region is of whole blocks, each with its own scales
        usages, device = store.bytes.usages, store.bytes.device
        part = buffers.allocate(store.format, *region.shape, usages, device)
        casting.cast_value(part, value)
        buffers.copy_region(store.bytes, region, part, buffers.whole_of(part))
        store.used = max(store.used, region.row_end)
    else:
        raise _cannot_write(store, region)


def _cannot_write(store: Store, region: Region) -> NotImplementedError:
    is_wide = region.columns == store.columns
    columns = "" if is_wide else f", columns {region.column} to {region.column_end}"
    way, why = "Write the whole tensor", "a scale spans the whole tensor"
    if store.place is not None:
        why = "it shares blocks with the shards of other ranks"
    if store.needs_others:
        way = "Load plain values before nc.convert, which then quantizes the shards together"
    return NotImplementedError(
        f"{store.describe()}: rows {region.row} to {region.row_end}{columns} cannot be written "
        f"alone, because {why} and no master is kept "
        f"(nc.convert(..., trainable=True) keeps one). {way}"
    )


def _write_master(store: Store, region: Region, value: torch.Tensor) -> None:
    store.notice()
    own, is_saved = region.of(store.master.value), store.master.saved is not None
    if is_saved and memory.have_same_bits(own, value):
        return
    own.copy_(value)
    store.mark_stale(region.row_end)
