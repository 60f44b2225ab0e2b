"""When shards have been written to that share a scale with those of others, of the tensor or of
blocks that cuts divide, all ranks make their bytes anew together. Whether they must is agreed upon
by all, at moments that all come to, and without the host waiting for an answer: docs/sharding.md.
"""

from __future__ import annotations

import itertools
import operator
import weakref
from collections.abc import Callable

import torch
import torch.distributed as dist

from narrowcast import _C
from narrowcast.fsdp import lent_scales, shared_casts, torch_names, torch_parameters
from narrowcast.tensor import casting, dtensors
from narrowcast.tensor.store import Store

NEVER = 0  # the number of no agreement
_numbers = itertools.count(NEVER + 1)
# What of a store an agreement is made from.
_PARTS = operator.attrgetter("partial", "bytes", "master")

# What a rank says of a shard; the largest decides. A cast leaves what is negative as it is.
_SETTLED, _RESTORED, _WRITTEN = range(-2, 1)
_NOTHING = -1.0  # in the end it says whether it has anything to say; 0 if it has


class Agreement:
    """About shards that need others for a cast, by the ranks of a process group."""

    def __init__(self, stores: list[Store], process_group: dist.ProcessGroup | None):
        by_format: dict = {}
        for store in stores:
            if store.place is None:
                by_format.setdefault(store.format, []).append(store)
        sharing = [store for store in stores if store.place is not None]
        sharing.sort(key=lambda store: store.format.name)
        self._stores = [store for batch in by_format.values() for store in batch] + sharing
        self._own, self._shared = len(stores) - len(sharing), None
        if sharing:
            self._shared = shared_casts.SharedCasts(sharing, process_group)
        silence = _floats([float(_SETTLED)] * len(stores) + [_NOTHING] + [0.0] * len(stores))
        # What the ranks say of each shard, and the amaxes, made anew from silence each time.
        self._silence = silence.to(self._stores[0].bytes.device)
        self._memory, self._is_silent = torch.empty_like(self._silence), False
        self._said, self._amaxes = self._memory.split([len(stores) + 1, len(stores)])
        self._reduce_said = casting.reduction(self._said, process_group)
        self._reduce_amaxes = casting.reduction(self._amaxes, process_group)
        self._batches, begin = [], 0
        for batch in by_format.values():
            part = slice(begin, begin + len(batch))
            self._batches.append((casting.casts_of(batch), self._amaxes[part], self._said[part]))
            begin += len(batch)
        self._of_shared, self._silent = self._said[begin : len(stores)], self._said[-1:]

    def make_bytes(self, is_quiet: bool) -> None:
        """Makes the bytes of those shards that any rank has written to; collective, whoever has
        written. Those of a saved state are made again if no rank has written anything else.
        `is_quiet`: this rank has not.
        """
        if not self._is_silent:
            _C.copy_floats(self._memory, self._silence)
        self._is_silent = False
        every = () if is_quiet else enumerate(self._stores)
        stale = [(place, store) for place, store in every if store.is_stale]
        if stale:  # otherwise the host has nothing to send, which it would wait for
            self._said.copy_(_floats([*map(_level, self._stores), 0.0]))
        self._reduce_said()
        for casts, amaxes, _ in self._batches:
            casts.find_amaxes(into=amaxes, skip=self._silent)
        if self._batches:
            self._reduce_amaxes()
        for casts, amaxes, verdict in self._batches:
            casts.cast(amaxes, verdict=verdict)
        if self._shared is not None:
            self._shared.collect()
            self._shared.reduce()
            self._shared.cast(self._of_shared)
        if stale:  # only then it matters to the host what the others have said
            agreed = self._said.tolist()
            for place, store in stale:
                if agreed[place] == _RESTORED:
                    self._cast_again(place, store)
                store.master.settle()
        # Here, and not before the reduction, for whatever comes first takes the host longer.
        _C.copy_floats(self._memory, self._silence)
        self._is_silent = True

    def _cast_again(self, place: int, store: Store) -> None:
        if store.place is not None:
            self._shared.cast_saved(place - self._own)
        else:
            casting.cast_again(store, self._amaxes[place : place + 1])


def _floats(values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32, device="cpu")


def _level(store: Store) -> float:
    if not store.is_stale:
        return float(_SETTLED)
    return float(_WRITTEN if store.master.saved is None else _RESTORED)


class Agreements:
    """Those about a list of shards, remembered from time to time."""

    def __init__(self):
        self._stores, self._parts, self._all = [], None, []
        self._watch: _C.Watch | None = None

    @property
    def are_quiet(self) -> bool:
        """Whether nothing has changed since the last time, on this rank."""
        return self._watch is not None and self._watch.is_quiet

    def forget(self) -> None:
        """The next time all stores are looked at."""
        self._watch = None

    def make_bytes(self, stores: list[Store], process_groups: Callable[[], list]) -> None:
        """Makes the bytes of the shards that any rank has written to; of stale matrices that are
        whole tensors, or on meta, too. `process_groups`: gives that of each.
        """
        if self.are_quiet and stores == self._stores:
            self.make_bytes_again()
            return
        watch = _C.Watch(stores)
        self._look(stores, process_groups)
        for agreement in self._all:
            agreement.make_bytes(is_quiet=False)
        self._watch = watch  # nothing is stale now

    def make_bytes_again(self) -> None:
        """The same of the same list, where it is quiet."""
        for agreement in self._all:
            agreement.make_bytes(is_quiet=True)

    def _look(self, stores: list[Store], process_groups: Callable[[], list]) -> None:
        if alone := [store for store in stores if store.is_stale and not _waits(store)]:
            casting.cast_masters(alone)
        parts = [*map(_PARTS, stores)]
        if stores != self._stores or parts != self._parts:
            with torch.inference_mode(False):  # a first forward may be there
                self._all = _agreements(stores, process_groups())
            self._stores, self._parts = stores, parts


def _waits(store: Store) -> bool:
    """Whether a cast needs what others have; one on meta makes nothing."""
    return store.needs_others and store.bytes.is_plain


def _agreements(stores: list[Store], process_groups: list) -> list[Agreement]:
    """Of each process group; and where ranks share blocks, of each part of tensor parallelism."""
    alike: dict = {}
    for store, process_group in zip(stores, process_groups, strict=True):
        if _waits(store) and store.master is not None:
            part = store.place and (store.place.part, store.place.parts)
            alike.setdefault((process_group, part), []).append(store)
    return [Agreement(some, process_group) for (process_group, _), some in alike.items()]


class LastAgreement:
    """The last one about a module tree: its number, the module whose forward it was in, which of
    the tree's forwards that was, and what was agreed about: the stores of the tree's shards. The
    same on all ranks.
    """

    def __init__(self):
        self.number, self.root, self.forward = NEVER, lambda: None, 0
        self._agreements = Agreements()
        self._states: list = []
        self._stores: list[Store] = []
        self._lent: lent_scales.LentScales | None = None

    def agree(self, states: list) -> None:
        """Makes the bytes of the shards of a tree."""
        watch = _C.Watch([])
        if self._agreements.are_quiet and self._states == states:
            self._agreements.make_bytes_again()
        else:
            groups = torch_names.groups_of(states)
            for one in groups:
                torch_parameters.watch(one.fsdp_params)
            self._stores = [store for _, store in _shards(groups)]
            self._states, self._lent = states, lent_scales.LentScales(groups)
            self._agreements.make_bytes(self._stores, self._process_groups)
        self._lent.lend()
        if not watch.is_quiet:  # a change since, on another thread: it may be one of the list
            self._agreements.forget()
        self.number = next(_numbers)  # after a failure the next gather agrees

    def _process_groups(self) -> list:
        """That of each store."""
        shards = _shards(torch_names.groups_of(self._states))
        return [dtensors.shard_group(torch_names.sharded(one)) for one, _ in shards]


def _shards(groups: list) -> list[tuple]:
    """The quantized parameters of some groups, each with the store of its shard."""
    return [shard for group in groups for shard in torch_names.quantized(group)]


def agree(group) -> tuple[int, bool]:
    """Before a gather of a group with scales that shards share, in a forward or for unshard():
    makes the bytes of all such shards of the module tree, once a forward and at every unshard().
    Returns the agreement's number, and whether a forward begins with it.

    FSDP2 tells when a forward begins, but not if the last one ended in an exception; then one has
    begun when a group is gathered again (_C.GatherStart.have_agreed). What is written later in a
    forward takes effect with the next one.
    """
    tree = torch_names.tree_of(group)
    torch_parameters.watch_tree(tree)
    if tree.last_agreement is None:
        tree.last_agreement = LastAgreement()
    last, root, forward = tree.last_agreement, torch_names.forward_root(tree), tree.forwards
    last.agree(torch_names.states_of(tree, group))
    # After unshard(), the forward that it may be for is still to begin.
    is_forward = root is not None and not torch_names.is_asked_for(group)
    last.root, last.forward = weakref.ref(root) if is_forward else lambda: None, forward
    return last.number, is_forward


def forget(group) -> None:
    """What was agreed about the module tree of a group, whose shards are others now."""
    tree = torch_names.tree_of(group)
    torch_parameters.watch_tree(tree)
    tree.last_agreement = None
