"""Where the gathers of a group arrive."""

from __future__ import annotations

import itertools

import torch

_ALIGNMENT = 512  # of each slot: torch's allocator gives no less


class Slots:
    """The memory of all that gathers bring of some quantized weights: their slots, which FSDP2
    fills, and their arenas, which slots are unpacked into. FSDP2 would allocate and free each by
    itself at every gather, and for small weights that takes longer than the hooks. Here it is one
    allocation, there while any of the weights is gathered.

    sizes   bytes of each slot and, last, of the arena; by weight
    """

    def __init__(self, sizes: list[list[int]]):
        self._sizes = sizes
        rooms = (-(-size // _ALIGNMENT) * _ALIGNMENT for of_one in sizes for size in of_one)
        *begins, self._bytes = itertools.accumulate(rooms, initial=0)
        begin = iter(begins)
        self._begins = [[next(begin) for _ in of_one] for of_one in sizes]
        self._storage: torch.UntypedStorage | None = None
        self._held = 0  # a bit for each weight

    def of(self, weight: int, device: torch.device) -> list[torch.Tensor]:
        """uint8, one-dimensional: the slots of a weight, at its first gather."""
        if self._storage is None:
            self._device = device  # that of a FakeTensor's storage is meta
            self._storage = torch.empty(0, dtype=torch.uint8, device=device).untyped_storage()
        self.take(weight)  # or torch would give it memory for each of them
        return [self._tensor(weight, which) for which in range(len(self._sizes[weight]) - 1)]

    def arena(self, weight: int) -> torch.Tensor:
        """uint8, one-dimensional; after of()."""
        return self._tensor(weight, -1)

    def _tensor(self, weight: int, which: int) -> torch.Tensor:
        """Of its own, and no view: torch counts what is written to it apart from the others."""
        begin, size = self._begins[weight][which], self._sizes[weight][which]
        with torch.inference_mode(False):  # a first gather may be there
            empty = torch.empty(0, dtype=torch.uint8, device=self._device)
            return empty.set_(self._storage, begin, (size,))

    def take(self, weight: int) -> None:
        """A weight is about to be gathered."""
        if self._held == 0:
            self._storage.resize_(self._bytes)
        self._held |= 1 << weight

    def give(self, weight: int) -> None:
        """A weight's bytes are needed no more."""
        if self._held == 0:
            return
        self._held &= ~(1 << weight)
        if self._held == 0:
            self._storage.resize_(0)
