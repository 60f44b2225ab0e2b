"""Weights with masters that share the scale of the tensor: it follows from the largest magnitude of
all of them, so if the bytes of one are made anew, those of the others are too.
"""

from __future__ import annotations

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
    shards too, has it in its config. The module has it too: a copy or a pickle of that makes a
    group of the copied weights, and one of a weight alone shares nothing.

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
        """The stores that share the scale, if this is one of them; of a copy the store alone."""
        stores = [one() for one in self._stores]
        if self._changes != _C.changes() or None in stores:
            stores = [dtensors.local_of(weight)._store for weight in self._weights()]
            self._stores = [*map(weakref.ref, stores)]
            self._changes = _C.changes()
        return stores if store in stores else [store]

    def present_names(self) -> list[str]:
        """Names of the weights that the module still has; of all, if there is no such module."""
        if self._module() is None:
            return [*self.names]
        return [dtensors.local_of(one).config.name for one in self._weights()]

    def _weights(self) -> list[nn.Parameter]:
        """The module's parameters that have this group."""
        module = self._module()
        found = []
        for parameter in () if module is None else module.parameters():
            config = getattr(dtensors.local_of(parameter), "config", None)
            if getattr(config, "scale_group", None) is self:
                found.append(parameter)
        return found

    def __reduce__(self):  # of a deep copy, too
        return _again, (self._module(), self.names, self.shapes, self._weights())


def _again(module, names, shapes, weights) -> ScaleGroup:
    """The group of a module that is copied or unpickled, whose weights have been."""
    group = ScaleGroup(module, names, shapes)
    for weight in weights:
        local = dtensors.local_of(weight)
        local.config = local.config._replace(scale_group=group)
    return group


def stale_of(stores: Sequence[Store]) -> list[Store]:
    """Those of a list whose bytes are to be made: stale ones, and what shares a scale with one."""
    groups = {one.config.scale_group for one in stores if one.is_stale} - {None}
    return [
        one
        for one in stores
        if one.is_stale or (one.master is not None and one.config.scale_group in groups)
    ]


def check(stores: Sequence[Store]) -> dict[ScaleGroup, list[int]]:
    """Where in a list of stores, which are cast together, those of each group are. ValueError,
    naming them, if some of a group are not there.
    """
    indices: dict[ScaleGroup, list[int]] = defaultdict(list)
    for index, store in enumerate(stores):
        if store.config.scale_group is not None and store.format.tensor_amax:
            indices[store.config.scale_group].append(index)
    for group, some in indices.items():
        there = {stores[index].config.name for index in some}
        if missing := [name for name in group.present_names() if name not in there]:
            raise ValueError(
                f"{' and '.join(missing)} and {' and '.join(sorted(there))} have one scale "
                "(share_scale of nc.convert), so their bytes are made together: by one optimizer "
                "with one rule and rounding, as shards of one call of fully_shard over the same "
                "ranks, in one list of flat shards, on one device. Here are only the latter. Keep "
                "them together, or nc.convert(..., share_scale=False)"
            )
    return indices


def peers_of(stores: Sequence[Store]) -> _C.Peers | None:
    """Of matrices of one format on one device, which are cast together: which of them share a
    scale; None if none do. ValueError as of check().
    """
    indices = check(stores)
    if not indices:
        return None
    peers = [[index] for index in range(len(stores))]
    for some in indices.values():
        for index in some:
            peers[index] = some
    width = max(map(len, peers))
    filled = [some + some[:1] * (width - len(some)) for some in peers]
    return _C.Peers(filled, stores[0].bytes.device)


def share(peers: _C.Peers | None, amaxes) -> None:
    """Has amaxes, float32 [matrices], become the largest of each one's peers."""
    if peers is not None:
        peers.share(amaxes)
