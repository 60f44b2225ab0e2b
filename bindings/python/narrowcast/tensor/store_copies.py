"""What changes a store or makes one from another: where it may be cut, copies of a region, a write
of values.
"""

import torch

from narrowcast import _C
from narrowcast.tensor import buffers, casting, compiling
from narrowcast.tensor.graph_parts import traced_copy
from narrowcast.tensor.region import Region
from narrowcast.tensor.store import Store
from narrowcast.tensor.unaligned import UnalignedStore


def check_cut(store: Store, region: Region) -> None:
    """ValueError unless a region begins and ends where the matrix can be cut."""
    if region != store.region:
        store.check_aligned("be cut")
    row_step, column_step = store.step
    for row in (region.row, region.row_end):
        if row < store.rows:
            _check_bound(store, "row", row, row_step, store.rows)
    for column in (region.column, region.column_end):
        if column < store.columns:
            _check_bound(store, "column", column, column_step, store.columns)


def _check_bound(store: Store, what: str, at: int, step: int, end: int) -> None:
    if at % step != 0:
        below, above = at // step * step, min(-(-at // step) * step, end)
        raise ValueError(
            f"{store.describe()} cannot be cut at {what} {at}: only at multiples of {step}, the "
            f"{what} step of {store.format.name} in its {' and '.join(store.bytes.usages)} bytes. "
            f"Cut at {what} {below} or {above}, or cut the plain tensor that dequantize() makes"
        )


def copy_region(target: Store, region: Region, source: Store, source_region: Region) -> None:
    """Copies a region of a matrix of the same format, whose bytes are fresh, into a region of
    another, byte for byte, in the usages that both have. ValueError if FSDP2 has freed the bytes of
    either.
    """
    source.check_not_freed()
    target.check_written()
    if target.master is not None:  # what a merge has left
        target.drop_master()
    if target.bytes.is_plain:  # in a trace nothing is written
        _C.note_write()
    if isinstance(target, UnalignedStore):  # and so is the source, with the same blocks
        every = buffers.full_region(target.bytes)
        buffers.copy_region(target.bytes, every, source.bytes, every)
    else:
        buffers.copy_region(target.bytes, region, source.bytes, source_region)
    part_of_source = region.rows < source.rows or region.columns < source.columns
    target.partial = target.partial or source.partial or part_of_source
    buffers.copy_spanning(target.bytes, source.bytes)


def part_of(store: Store, region: Region, device: torch.device | None = None) -> Store:
    """A copy of a region, as a matrix of its own, in the usages that are there, with what merges
    have kept of it. `device`: where a copy in a trace is to be.
    """
    store.check_copied()
    if store.is_traced:
        return traced_copy(store, region, device or store.device)
    if region == store.region:
        return store.map(lambda tensor: tensor.clone())
    part = store.new_empty(*region.shape, store.bytes.usages, store.bytes.device)
    copy_region(part, part.region, store, region)
    part.partial = True
    if store.master is not None:
        part.master = region.slice(store.master).clone()
        if not store.is_stale:
            part.mark_fresh()
    return part


# ---- values ----


def write(store: Store, region: Region, value: torch.Tensor) -> None:
    """Sets a region to a value, [rows, columns] of float32, bfloat16 or float16. With a master,
    that is set and the bytes become stale; without, they are made at once. ValueError if FSDP2 has
    freed the bytes.
    """
    store.check_written()
    compiling.check_write(store.describe())
    if store.master is not None:
        region.slice(store.master).copy_(value)
        store.mark_stale()
    elif region == store.region and not store.needs_others:
        casting.cast_value(store.bytes, value)
    elif not isinstance(store, UnalignedStore) and not store.format.tensor_amax:
        # A region is of whole blocks, each with its own scales.
        usages, device = store.bytes.usages, store.bytes.device
        part = buffers.allocate(store.format, *region.shape, usages, device)
        casting.cast_value(part, value)
        buffers.copy_region(store.bytes, region, part, buffers.full_region(part))
    else:
        raise NotImplementedError(
            f"{store.describe()}: rows {region.row} to {region.row_end} cannot be written alone, "
            "because a scale spans the whole tensor or blocks are shared with other ranks, and no "
            "master is kept (nc.convert(..., trainable=True) keeps one). Write the whole tensor, "
            "or load plain values before nc.convert, which then quantizes shards together"
        )
