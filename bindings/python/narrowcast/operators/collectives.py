"""Collectives that give others frozen weights as they are: as their buffers. DTensor distributes a
whole weight by scattering it, DistributedDataParallel broadcasts.
"""

from itertools import chain

import torch
import torch.distributed as dist

from narrowcast import _C
from narrowcast.operators import arithmetic
from narrowcast.operators.common import bound
from narrowcast.tensor import QuantizedTensor
from narrowcast.tensor.dispatch import implements
from narrowcast.tensor.store import Store

c10d = torch.ops.c10d


@implements(c10d.broadcast_.default)
def _broadcast(func, args, kwargs):
    values = bound(func, args, kwargs)
    (tensor,) = values["tensors"]
    store = tensor._store
    if dist.ProcessGroup.unbox(values["process_group"]).rank() == values["root_rank"]:
        store.refresh()
    parts = [{"tensors": [one]} for one in store.tensors]
    return [tensor], _run(func, values, parts, store)


@implements(c10d.scatter_.default)
def _scatter(func, args, kwargs):
    values = bound(func, args, kwargs)
    (output,), pieces = values["output_tensors"], [*chain(*values["input_tensors"])]
    if not isinstance(output, QuantizedTensor):
        return arithmetic.run(func, args, kwargs)
    target = output._store
    sources = [piece._view.own_store() for piece in pieces]
    for source in sources:
        source.refresh()
    given = list(zip(*(source.tensors for source in sources), strict=True))
    parts = [
        {"output_tensors": [one], "input_tensors": [list(given[index])] if given else []}
        for index, one in enumerate(target.tensors)
    ]
    target.partial = dist.ProcessGroup.unbox(values["process_group"]).size() > 1
    return [output], _run(func, values, parts, target)


def _run(func, values: dict, parts: list[dict], store: Store) -> dist.Work:
    """Runs a collective for each tensor of a store. The new bytes are there when it returns, and
    what was written to the store before is gone.
    """
    store.check_written()
    _C.note_write()
    # The work of a collective that is not asynchronous is nothing with NCCL, and to look at it
    # crashes.
    work = [func(**values | one | {"async_op": True})[1] for one in parts]
    for one in work:
        one.wait()
    store.mark_fresh()
    return work[-1]
