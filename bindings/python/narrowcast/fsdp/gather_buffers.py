"""The quantized weights that FSDP2 gathers together, and the memory of their gathers: what each
sends, and where it arrives.
"""

from __future__ import annotations

from functools import partial

import torch

from narrowcast import _C
from narrowcast.fsdp import copy_gather, first_gather, torch_names
from narrowcast.tensor.store import Store
from narrowcast.tensor.unaligned import UnalignedStore

ShardGather = _C.WeightGather | copy_gather.CopyGather

_SEND_ALIGNMENT = 256  # of a weight's part of the send buffer
_RECEIVE_ALIGNMENT = 512  # of each receive buffer: torch's allocator gives no less
_SMALL = 1 / 16  # of what a group sends


def gather_of(group, parameter, store: Store) -> ShardGather:
    """The gather of a shard."""
    both = first_gather.both(group, store)
    is_offloaded = torch_names.offloading_device(parameter) is not None
    # Estimates (on meta) take rows, of the same size.
    if isinstance(store, UnalignedStore) and store.bytes.is_plain:
        copies_of = partial(copy_gather.UnalignedCopies, unaligned=store.shard)
    elif is_offloaded or torch_names.cut_dimension(parameter) != 0:
        pieces = copy_gather.pieces_of(parameter)
        copies_of = partial(copy_gather.PieceCopies, pieces=pieces)
    else:
        rows, world = torch_names.full_shape(parameter)[:-1].numel(), torch_names.world(parameter)
        shard_rows = torch_names.shard_rows(parameter)
        return _C.WeightGather(store.bytes, rows, shard_rows, world, both, shares=world > 1)
    return copy_gather.CopyGather(store, both, copies_of)


class SendBuffer:
    """The payloads that are packed, of some weights. It begins with the payload that weights share,
    which the first of them carries.

    payloads   of a forward's gather and of a backward's: those of each weight
    """

    def __init__(self, gathers: list[ShardGather], device: torch.device):
        sharing = [gather for gather in gathers if gather.shared_bytes]
        shared, begin = sum(gather.shared_bytes for gather in sharing), 0
        for gather in sharing:
            gather.share(begin, shared)
            begin += gather.shared_bytes
        begin = -(-shared // _SEND_ALIGNMENT) * _SEND_ALIGNMENT
        self._bytes = begin + sum(gather.send_bytes for gather in gathers)
        memory = torch.empty(self._bytes, dtype=torch.uint8, device=device)
        self.payloads: tuple[list[list[torch.Tensor]], ...] = [], []
        for gather in gathers:
            gather.use_send_buffer(memory, begin)
            begin += gather.send_bytes
            carried = [memory[:shared]] if gather in sharing[:1] else []
            for backward, every in enumerate(self.payloads):
                every.append([*gather.payloads(bool(backward)), *carried])
        sent = sum(payload.nbytes for payloads in self.payloads[0] for payload in payloads)
        alike = all(gather.carries_alike for gather in gathers)
        # If it is small, and all passes pack the same, its memory stays.
        self.is_kept = self._bytes == 0 or (alike and self._bytes <= _SMALL * sent)
        self._storage = memory.untyped_storage()

    def allocate(self) -> None:
        """A gather begins to pack."""
        if not self.is_kept:
            self._storage.resize_(self._bytes)

    def free(self) -> None:
        """What was packed has arrived."""
        if not self.is_kept:
            self._storage.resize_(0)


class ReceiveBuffers:
    """The memory of all that gathers bring of some quantized weights: their receive buffers, which
    FSDP2 fills, and what those are unpacked into. FSDP2 would allocate and free each by itself at
    every gather, and for small weights that takes longer than the hooks. Here it is one allocation,
    there while any of the weights is gathered.

    sizes   bytes of each receive buffer and, last, of what they are unpacked into; by weight
    """

    def __init__(self, sizes: list[list[int]], device: torch.device):
        self._device, self._bytes = device, 0
        self._places: list[list[tuple[int, int]]] = []  # where each begins, and its bytes
        for of_weight in sizes:
            self._places.append([])
            for size in of_weight:
                self._places[-1].append((self._bytes, size))
                self._bytes += -(-size // _RECEIVE_ALIGNMENT) * _RECEIVE_ALIGNMENT
        memory = torch.empty(0, dtype=torch.uint8, device=device)
        self._storage = memory.untyped_storage()
        self._gathered = 0  # a bit for each weight

    def tensors(self, weight: int) -> list[torch.Tensor]:
        """uint8, one-dimensional: the receive buffers of a weight, at its first gather."""
        self.allocate(weight)  # or torch would give it memory for each of them
        return [self._tensor(*place) for place in self._places[weight][:-1]]

    def unpacked(self, weight: int) -> torch.Tensor:
        """uint8, one-dimensional; after tensors()."""
        return self._tensor(*self._places[weight][-1])

    def _tensor(self, begin: int, size: int) -> torch.Tensor:
        """Of its own, and no view: torch counts what is written to it apart from the others."""
        with torch.inference_mode(False):  # a first gather may be there
            empty = torch.empty(0, dtype=torch.uint8, device=self._device)
            return empty.set_(self._storage, begin, (size,))

    def allocate(self, weight: int) -> None:
        """A weight is about to be gathered."""
        if self._gathered == 0:
            self._storage.resize_(self._bytes)
        self._gathered |= 1 << weight

    def free(self, weight: int) -> None:
        """A weight's bytes are needed no more: with the last one the memory is freed."""
        if self._gathered != 0:
            self._gathered &= ~(1 << weight)
            if self._gathered == 0:
                self._storage.resize_(0)
