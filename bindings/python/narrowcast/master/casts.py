"""The occasions that make the bytes of a weight in training from its value. There are no others:

    1. a step of nc.optim, which writes both in one pass (optimizer/launches.py)
    2. fsdp.stale.cast, which alone may need other ranks: the gather of a forward under FSDP2, of
       all that was written to in its module tree; tensor parallelism, as it cuts a weight and
       before a forward (parallel/distributing.py); nc.convert of such a part, and of what it
       freezes; a step with delayed scaling, of what it continues; nc.to_plain and nc.export
    3. the first product of a weight that is no shard: before_product()
    4. a graph of torch.compile that asks for the tensors of a weight: before_graph()
    5. nc.load_published, whose bytes a cast of their value need not give: note_published(). They
       stay until the value is written to, and fully_shard copies them into shards

Between them a write is a number: torch counts it, and the store knows the count of which it has
bytes. What torch cannot count says note_write().
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.autograd.graph import increment_version

from narrowcast.master.cell import Cell
from narrowcast.tensor import casting, compiling, dtensors
from narrowcast.tensor.store import Store

if TYPE_CHECKING:
    from narrowcast.master.weight import MasterWeight


def before_product(cell: Cell) -> Store:
    """The store of a weight that a product reads, with fresh bytes. Where they are stale, so are
    those of the weights beside it after an optimizer's step, and one cast makes all of them: of
    those that a product has read before. ValueError, of a shard that was written to, if its cast
    needs what other ranks have.
    """
    _check_trace(cell)
    store = cell.store
    is_replayed = cell.whole.is_cuda and torch.cuda.is_current_stream_capturing()
    if is_replayed and not cell.has_exact_bytes:
        # The host does not see what is written between replays. Bytes that a cast need not give are
        # those of an optimizer's step, which makes the next ones too.
        store.mark_stale()
    if store.is_stale:
        with compiling.without_modes():
            if not _is_alone(cell):
                store.refresh()
            else:
                cell.readers.add(cell)
                beside = (one.store for one in cell.readers if _is_alone(one))
                casting.cast_masters([one for one in beside if one.is_stale])
    return store


def _check_trace(cell: Cell) -> None:
    """NotImplementedError if the compiled function has written to it, or made it as a copy."""
    if cell.written:
        raise NotImplementedError(
            f"{cell.config.name or 'a weight'}: a compiled function cannot write to it, nor copy "
            "it, and then multiply by that, because its graph has the bytes of before. Write and "
            "copy outside of the function"
        )


def before_graph(weight: MasterWeight) -> None:
    """Makes the bytes of a weight fresh for a graph that is about to run. A graph that will write
    to it has counted that by now, and counts nothing more: so bytes that are made after a count
    which this tensor has not seen are made again for the next reader.
    """
    store = weight.cell.store
    if store.master is None:  # in a trace
        return
    _check_trace(weight.cell)
    if not store.needs_others:  # whose bytes the next gather or forward makes
        with compiling.without_modes():
            store.refresh()
    if weight.seen_by_graphs != store.master._version:
        weight.seen_by_graphs = store.master._version
        store.mark_stale()


def note_published(weight: torch.Tensor) -> None:
    """A weight has bytes that were read from a file, and their value. A graph that asks for them
    and has counted no write since will not write either.
    """
    if isinstance(cell := getattr(weight, "cell", None), Cell):
        weight.seen_by_graphs = cell.store.master._version


def _is_alone(cell: Cell) -> bool:
    """Whether its cast needs no other rank, and no other weight."""
    needs_others = cell.is_shard or cell.store.needs_others
    return not needs_others and cell.config.scale_group is None


def note_write(weight: torch.Tensor) -> None:
    """Call it after a write to a weight of a converted model that torch does not count: a write by
    a kernel that got its address, through numpy, through `.data` of memory that the weight shares,
    or within torch.autograd._unsafe_preserve_version_counter. The bytes are made anew before they
    are read. TypeError if `weight` is no nc.MasterWeight, nor a DTensor over such a weight.
    """
    local: MasterWeight = dtensors.local_of(weight)
    cell = getattr(local, "cell", None)
    if not isinstance(cell, Cell):
        raise TypeError(f"a weight in training is meant, not a {type(local).__name__}")
    increment_version([local.value])
