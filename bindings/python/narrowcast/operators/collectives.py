"""Collectives that give others a weight as it is: it travels as the buffers and the master that it
is. DTensor distributes a whole weight by scattering it, ZeroRedundancyOptimizer broadcasts.
"""

from itertools import chain

import torch.distributed as dist

from narrowcast import _C, ranks
from narrowcast.operators import arithmetic, table
from narrowcast.operators.common import bound
from narrowcast.tensor import QuantizedTensor
from narrowcast.tensor.dispatch import implements
from narrowcast.tensor.store import Store

_BROADCAST, _SCATTER = table.BROADCAST.operators


@implements(_BROADCAST)
def _broadcast(func, args, kwargs):
    values = bound(func, args, kwargs)
    (tensor,) = values["tensors"]
    process_group = dist.ProcessGroup.unbox(values["process_group"])
    store = tensor._store
    is_root = process_group.rank() == values["root_rank"]
    _prepare("a weight that is broadcast", tensor, [store], is_root, process_group)
    work = [_begun(func, values | {"tensors": [one]}) for one in store.tensors]
    return [tensor], _received(store, work)


@implements(_SCATTER)
def _scatter(func, args, kwargs):
    values = bound(func, args, kwargs)
    (output,), pieces = values["output_tensors"], [*chain(*values["input_tensors"])]
    if not isinstance(output, QuantizedTensor):
        return arithmetic.run(func, args, kwargs)
    process_group = dist.ProcessGroup.unbox(values["process_group"])
    target = output._store
    sources = [getattr(piece, "_view", None) and piece._view.own_store() for piece in pieces]
    stores, is_root = sources or [target], bool(sources)
    _prepare("a weight that is scattered", output, stores, is_root, process_group)
    work = []
    for index, tensor in enumerate(target.tensors):
        given = [[source.tensors[index] for source in sources]] if sources else []
        parts = {"output_tensors": [tensor], "input_tensors": given}
        work.append(_begun(func, values | parts))
    target.partial = process_group.size() > 1
    return [output], _received(target, work)


def _prepare(
    what: str, tensor: QuantizedTensor, stores: list[Store | None], is_root: bool, process_group
) -> None:
    """DisagreementError on all ranks unless what one gives is what the others have room for."""
    can_send = all(stores) and not any(one.is_stale and one.needs_others for one in stores)
    if is_root and can_send:
        for store in stores:
            store.refresh()
    can_take = all(stores) and len({_parts(store) for store in stores}) == 1
    fits = can_take and (can_send or not is_root)
    line = _parts(stores[0]) if fits else "something that cannot be sent (plain, or written to)"
    ranks.same(what, [(process_group, tensor.device, line)])
    _C.note_write()


def _parts(store: Store) -> str:
    """What all ranks must have alike."""
    sizes = ", ".join(f"{'x'.join(map(str, one.shape))} {one.dtype}" for one in store.tensors)
    return f"{store.rows}x{store.columns} in {store.format.identity}, of {sizes}"


def _begun(func, values: dict) -> dist.Work:
    """The work of one part, which can be waited for: that of a collective that is not asynchronous
    is nothing with NCCL, and to look at it crashes.
    """
    return func(**values | {"async_op": True})[1]


def _received(store: Store, work: list) -> dist.Work:
    """A weight's new bytes are there, and what was written to it before is gone."""
    for one in work:
        one.wait()
    store.used = store.rows
    if store.master is not None:
        store.master.mark_fresh()
    return work[-1]
