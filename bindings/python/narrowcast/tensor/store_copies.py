"""Stores from regions of others: where one may be cut, copies of a region, a shard to fill."""

from narrowcast.tensor import buffers, unaligned_parameters
from narrowcast.tensor.region import Region
from narrowcast.tensor.store import Store


def check_cut(store: Store, region: Region) -> None:
    """ValueError unless a region begins and ends where the matrix can be cut."""
    if region != store.whole and region.row < store.used:
        store.check_alone("be cut")
    row_step, column_step = store.step
    for row in (region.row, region.row_end):
        if row < min(store.used, store.rows):
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
    """Copies a region of a matrix of the same format into a region of another, byte for byte, in
    the usages that both have, and the master, if the target has one. ValueError if FSDP2 has freed
    the bytes of either.
    """
    source.check_there()
    target.check_there()
    if target.place is None:
        buffers.copy_region(target.bytes, region, source.bytes, source_region)
    else:  # of the same place
        every = buffers.whole_of(target.bytes)
        buffers.copy_region(target.bytes, every, source.bytes, every)
    if target.master is not None:
        target.notice()
        region.of(target.master.value).copy_(source.high_precision(source_region))
        target.master.note()
    target.used = max(target.used, region.row_end)
    part_of_source = region.rows < source.used or region.columns < source.columns
    target.partial = target.partial or source.partial or part_of_source
    has_all = set(target.bytes.usages) <= set(source.bytes.usages)
    if source.is_stale:
        target.mark_stale(region.row_end)
        if source.master.saved is not None:
            rows = source_region.row - region.row
            target.master.saved = source.master.saved.moved(rows * target.columns)
    elif target.master is not None and region == target.whole and has_all:
        target.master.settle()  # whatever it was before
    buffers.copy_spanning(target.bytes, source.bytes)


def check_copied(store: Store) -> None:
    """ValueError in a trace where gathers differ by pass."""
    if store.present is not None and store.gather is None:
        raise ValueError(
            f"{store.describe()}: a compiled function cannot use a part of it, or copy it, because "
            "its graph would keep the copy for the backward, whose gather brings other bytes. Use "
            "nc.convert(..., recompute=True), which has every gather carry both usages, or "
            "dequantize()"
        )


def part_of(store: Store, region: Region) -> Store:
    """A copy of a region, as a matrix of its own, in the usages that are there."""
    check_copied(store)
    if region == store.whole:
        return store.map(lambda tensor: tensor.clone())
    part = store.room(*region.shape, store.bytes.usages, store.bytes.device)
    copy_region(part, part.whole, store, region)
    part.partial = True
    return part


def zeros_like(store: Store, rows: int, columns: int, device) -> Store:
    """A matrix of zeros of another size, in the same format, usages and options.

    FSDP2 begins a shard with it, and leaves an empty one so. Therefore it has the usages that a
    shard keeps; and what spans the tensor is that of the weight, for zeros are zeros under any
    scale.
    """
    if store.straddle is not None or store.place is not None:
        return unaligned_parameters.blank(store, rows, device)
    zeros = store.room(rows, columns, buffers.kept_usages(store.format, store.bytes.usages), device)
    buffers.fill_with_zeros(zeros.bytes)
    if zeros.master is not None:
        zeros.master.value.zero_()
    if zeros.master is not None or store.is_cut:
        buffers.copy_spanning(zeros.bytes, store.bytes)
    zeros.used = 0
    return zeros
