"""Weights that share the scale of the tensor: it follows from the largest magnitude of all of them.
Wherever one of them is cast, so are the others, in the same launch.
"""

from __future__ import annotations

import warnings
import weakref
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import nn

from narrowcast import _C
from narrowcast.tensor import dtensors

if TYPE_CHECKING:
    from narrowcast.tensor.store import Store

_ATTRIBUTE = "_scale_groups"  # of the module below which the weights are


class ScaleGroup:
    """Weights below one module that share their scale of the tensor. Every store of one of them,
    shards and copies too, has it in its config. The module has it too: a copy or a pickle of that
    makes a group of the copied weights, and one of a weight alone shares nothing.

    names   of the weights, for messages
    shapes  of the whole weights
    """

    __slots__ = ("__weakref__", "_changes", "_module", "_stores", "names", "shapes")

    def __init__(self, module: nn.Module, names: Sequence[str], shapes: Sequence[tuple[int, ...]]):
        self.names, self.shapes = tuple(names), tuple(shapes)
        self._module = weakref.ref(module)
        self._changes, self._stores = -1, []

    def attach(self) -> None:
        """Has the module keep it, for copies and pickles, with those that still have weights."""
        kept = self._module().__dict__.setdefault(_ATTRIBUTE, [])
        kept[:] = [one for one in (*kept, self) if one._weights()]

    def beside(self, store: Store) -> list[Store]:
        """The stores of the module's weights that share the scale, if this is one of them; of
        others, such as copies, the store alone.
        """
        stores = [one() for one in self._stores]
        if self._changes != _C.changes() or None in stores:
            stores = [dtensors.local_of(weight)._store for weight in self._weights()]
            self._stores = [*map(weakref.ref, stores)]
            self._changes = _C.changes()
        return stores if store in stores else [store]

    def _weights(self) -> list[nn.Parameter]:
        """The module's parameters that have this group."""
        module = self._module()
        found = []
        for parameter in () if module is None else module.parameters():
            view = getattr(dtensors.local_of(parameter), "_view", None)
            if view is not None and view.store.config.scale_group is self:
                found.append(parameter)
        return found

    def __reduce__(self):  # of a deep copy, too
        return _again, (self._module(), self.names, self.shapes, self._weights())


def _again(module, names, shapes, weights) -> ScaleGroup:
    """The group of a module that is copied or unpickled, whose weights have been."""
    group = ScaleGroup(module, names, shapes)
    for weight in weights:
        store = dtensors.local_of(weight)._store
        store.config = store.config._replace(scale_group=group)
    return group


def stale_of(stores: Sequence[Store]) -> list[Store]:
    """Those of a list whose bytes are to be made: stale ones, and what shares a scale with one. If
    some of those have no master, as beside a weight that an adapter was added to, none share more.
    """
    groups = {one.config.scale_group for one in stores if one.is_stale} - {None}
    for one in stores:
        if one.config.scale_group in groups and one.master is None:
            leave(one)
    return [one for one in stores if one.is_stale or one.config.scale_group in groups]


def peers_of(stores: Sequence[Store]) -> _C.Peers | None:
    """Of matrices of one format on one device, which are cast together: which of them share a
    scale; None if none do. ValueError, naming them, if some of a group are not there.
    """
    places: dict[ScaleGroup, list[int]] = defaultdict(list)
    for place, store in enumerate(stores):
        if store.config.scale_group is not None and store.format.tensor_amax:
            places[store.config.scale_group].append(place)
    for group, some in places.items():
        there = {stores[place].config.name for place in some}
        if missing := [name for name in group.names if name not in there]:
            raise ValueError(
                f"{' and '.join(missing)} and {' and '.join(sorted(there))} have one scale "
                "(share_scale of nc.convert), so their bytes are made together: by one optimizer "
                "with one rounding, as shards of one call of fully_shard over the same ranks, in "
                "one list of flat shards, on one device, all with a master or none. Here are only "
                "the latter. Keep them together, or nc.convert(..., share_scale=False)"
            )
    if not places:
        return None
    peers = [[place] for place in range(len(stores))]
    for some in places.values():
        for place in some:
            peers[place] = some
    width = max(map(len, peers))
    filled = [some + some[:1] * (width - len(some)) for some in peers]
    return _C.Peers(filled, stores[0].bytes.device)


def leave(store: Store) -> None:
    """From now on all that share a scale with a weight do so no more, with a UserWarning: some have
    got another value, and without masters the others' bytes cannot follow.
    """
    if store.config.scale_group is None:
        return
    stores = store.config.scale_group.beside(store)
    for one in stores:
        one.config = one.config._replace(scale_group=None)
    if len(stores) > 1:
        warnings.warn(
            "weights that share a scale (share_scale of nc.convert) have got another value, and "
            "not all keep a master: from now on each has a scale of its own. Load values before "
            "nc.convert, or keep masters with trainable=True, and they share one",
            stacklevel=2,
        )


def share(peers: _C.Peers | None, amaxes) -> None:
    """Has amaxes, float32 [matrices], become the largest of each one's peers."""
    if peers is not None:
        peers.share(amaxes)
