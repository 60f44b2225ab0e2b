"""The whole weights that a group's gathers bring."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch

from narrowcast import _C
from narrowcast.fsdp.member import Gather
from narrowcast.tensor import dtensors
from narrowcast.tensor.store import Store


class Wholes:
    """Those of some weights, by number. FSDP2 keeps the tensors; what their stores look at is set
    for all at once. Tensors are known weakly, for their hooks and attributes may know the model.
    """

    def __init__(self, count: int):
        self._known: list[Callable[[], torch.Tensor | None]] = [lambda: None] * count
        self._looking: tuple[dict[int, tuple[Store, _C.Buffers]], ...] = {}, {}  # by pass

    def know(self, number: int, whole: torch.Tensor, gather: Gather) -> None:
        """From now on a whole weight looks at what a gather brings."""
        store = dtensors.local_of(whole)._view.store
        self._known[number] = weakref.ref(whole)
        for backward, looking in enumerate(self._looking):
            looking[number] = store, gather.whole(bool(backward))

    def has(self, number: int, whole: torch.Tensor) -> bool:
        return self._known[number]() is whole

    def turn(self, backward: bool) -> None:
        """They look at the bytes of a pass."""
        for store, bytes in self._looking[backward].values():
            store.bytes = bytes
