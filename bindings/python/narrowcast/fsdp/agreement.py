"""When shards of a tensor with one scale have been written to, all ranks make their bytes anew
together. Whether they must is agreed upon by all, at moments that all come to, and without the host
waiting for an answer: docs/sharding.md.
"""

from __future__ import annotations

import weakref

import torch
import torch.distributed as dist

from narrowcast import _C
from narrowcast.fsdp import torch_names
from narrowcast.tensor import casting
from narrowcast.tensor.store import Store

_SETTLED, _RESTORED, _WRITTEN = range(3)  # the larger one decides

# By module tree: the groups gathered since the last agreement, and the module whose forward it was
# in. The same on all ranks.
_since: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def before_forward(state, group) -> None:
    """Before a gather of a group with scales that span shards, in a forward or for unshard(): makes
    the bytes of all such shards of the module tree, once a forward and at every unshard().

    A forward has begun when its outermost module is another one, or a group is gathered again. What
    is written later in a forward takes effect with the next one.
    """
    tree, root = torch_names.tree_of(state), torch_names.forward_root(state)
    since, last_root = _since.get(tree, ((), None))
    if since and group not in since and last_root() is root and root is not None:
        since.add(group)
        return
    # After unshard(), the forward that it may be for is still to begin.
    since = weakref.WeakSet(() if torch_names.is_asked_for(group) else (group,))
    _since[tree] = since, (lambda: None) if root is None else weakref.ref(root)
    by_process_group: dict = {}
    for one in torch_names.groups_of_tree(state):
        for parameter in one.fsdp_params:
            store = torch_names.store_of(parameter)
            if store is not None and store.format.tensor_amax and torch_names.world(parameter) > 1:
                process_group = torch_names.process_group(parameter)
                by_process_group.setdefault(process_group, []).append(store)
    for process_group, stores in by_process_group.items():
        make_bytes(stores, process_group)


def make_bytes(stores: list[Store], process_group: dist.ProcessGroup | None) -> None:
    """Makes the bytes of those shards that any rank has written to; collective, whoever has
    written. Those of a saved state are made again if no rank has written anything else.
    """
    casting.cast_masters([s for s in stores if s.is_stale and not s.spans_shards])
    by_format: dict = {}
    for store in stores:
        if store.spans_shards and store.master is not None and store.bytes.is_plain:
            by_format.setdefault(store.format, []).append(store)
    if not by_format:
        return
    batches = list(by_format.values())
    stores = [store for batch in batches for store in batch]
    levels = torch.zeros(len(stores), dtype=torch.float32, device=stores[0].bytes.device)
    own = list(map(_level, stores))
    if any(own):  # otherwise the host has nothing to send, which it would wait for
        levels.copy_(torch.tensor(own, dtype=torch.float32))
    casting.reduce_over(levels, process_group)
    nothing = (levels.max() == _SETTLED).to(torch.float32)
    pairs = [casting.pairs_of(batch) for batch in batches]
    amaxes = torch.cat([_C.find_amaxes(*pair, skip=nothing) for pair in pairs])
    casting.reduce_over(amaxes, process_group)
    written = torch.where(levels == _WRITTEN, amaxes, -1.0)  # a kernel leaves what is negative
    for pair, own in zip(pairs, written.split([len(batch) for batch in batches]), strict=True):
        _C.cast(*pair, own)
    stale = [(place, store) for place, store in enumerate(stores) if store.is_stale]
    if stale:  # only then it matters to the host what the others have said
        agreed = levels.tolist()
        for place, store in stale:
            if agreed[place] == _RESTORED:
                casting.cast_again(store, amaxes[place : place + 1])
            store.master.settle()


def _level(store: Store) -> int:
    if not store.is_stale:
        return _SETTLED
    return _WRITTEN if store.master.saved is None else _RESTORED
