"""Gathers whose pieces are copied into the whole, in the place of _C.WeightGather's that arrive
there: of weights that are cut into columns, or into the rows of each expert (another dimension than
the first in shard_placement_fn), of shards on the CPU that arrive on another device
(CPUOffloadPolicy), and of shards that share blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from narrowcast import _C
from narrowcast.registry import BUFFERS, USAGES
from narrowcast.tensor import buffers
from narrowcast.tensor.region import Region
from narrowcast.tensor.store import Store
from narrowcast.tensor.unaligned import UnalignedShard

_ALIGNMENT = 256  # of a buffer within a payload: where every dtype may begin


class Piece(NamedTuple):
    """The rows and columns of a rank's shard, and regions of it with where they lie in the
    whole.
    """

    shape: tuple[int, int]
    places: list[tuple[Region, Region]]


class CopyGather:
    """As _C.WeightGather, of gathers that all bring the same: one payload holds all buffers of a
    shard, [shard_rows, columns] or less.

    pieces   of each rank; together they are the whole
    device   where that shall be
    """

    present = None  # no gather differs from another
    shared_bytes = 0  # it has the one payload for itself
    carries_alike = False  # for what is packed once for both passes: this is packed each time

    def __init__(self, shard: _C.Buffers, pieces: list[Piece], device: torch.device):
        self._shard, self._pieces, self._device, self.arena = shard, pieces, device, None
        places = [there for piece in pieces for _, there in piece.places]
        self._rows = max(region.row_end for region in places)
        self._columns = max(region.column_end for region in places)
        self._sent, self.outbox_bytes = self._layout(*pieces[0].shape)
        self._stored, self.arena_bytes = self._layout(self._rows, self._columns)

    def _layout(self, rows: int, columns: int) -> tuple[dict[int, int], int]:
        """Where each buffer of a matrix begins that is gathered, and where all of them end."""
        begins, end = {}, 0
        for number in BUFFERS:
            stored = self._shard.buffer(number)
            if stored is None or self._shard.format.is_spanning(number):
                continue
            shape = self._shard.format.buffer_shape(number, rows, columns)
            size = torch.Size(shape).numel() * stored.element_size()
            begins[number], end = end, end + -(-size // _ALIGNMENT) * _ALIGNMENT
        return begins, end

    def _over(
        self, memory: torch.Tensor, begins: dict[int, int], rows: int, columns: int, owns=False
    ):
        """A matrix whose buffers lie in a memory. What spans the tensor is the shard's, or a copy
        of it if the matrix owns it.
        """
        shard, every = self._shard, []
        for number in BUFFERS:
            stored = shard.buffer(number)
            if stored is None or number not in begins:
                every.append(_moved(stored, memory.device, owns))
                continue
            shape = shard.format.buffer_shape(number, rows, columns)
            size = torch.Size(shape).numel() * stored.element_size()
            here = memory.narrow(0, begins[number], size)
            every.append(here.view(stored.dtype).view(shape))
        spanning = (_moved(one, memory.device, owns) for one in (shard.amax, shard.history))
        return _C.Buffers(shard.format, rows, columns, every, *spanning)

    def use_outbox(self, outbox: torch.Tensor, begin: int) -> None:
        self._payload = outbox.narrow(0, begin, self.outbox_bytes)

    def payloads(self, backward: bool) -> list[torch.Tensor]:
        return [self._payload]

    def sent(self, payloads: list[torch.Tensor]) -> list[torch.Tensor]:
        """The payloads where the gather runs."""
        return [payload.to(self._device, non_blocking=True) for payload in payloads]

    def pack(self, backward: bool) -> None:
        shard = self._shard
        if shard.rows == 0:
            return
        packed = self._over(self._payload, self._sent, shard.rows, shard.columns)
        whole = buffers.full_region(shard)
        buffers.copy_region(packed, whole, shard, whole)

    def settle(self, slots, arena: torch.Tensor) -> None:
        """Makes room for the whole in the arena, over the slot that the payloads arrive in."""
        (slot,), size = slots, self.outbox_bytes
        self.arena = arena
        self._whole = self._over(arena, self._stored, self._rows, self._columns, owns=True)
        self._arriving = [
            (self._over(slot.narrow(0, rank * size, size), self._sent, *piece.shape), piece.places)
            for rank, piece in enumerate(self._pieces)
            if 0 not in piece.shape
        ]

    def whole(self, backward: bool) -> _C.Buffers:
        return self._whole

    arrive = whole

    def unpack(self, backward: bool) -> None:
        with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(self.arena):
            self.arena.zero_()  # the padding
            for piece, places in self._arriving:
                for here, there in places:
                    buffers.copy_region(self._whole, there, piece, here)

    def copy_scales(self, backward: bool) -> None:
        """Copies what spans the tensor from the shard, where it is equal on all ranks."""
        copied = tuple(one for one in buffers.spanning_of(self._whole) if one is not None)
        with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(copied):
            buffers.copy_spanning(self._whole, self._shard)


class UnalignedGather(CopyGather):
    """Of a shard that shares blocks: each rank sends the bytes of its own elements, as flat shards
    do. One launch packs and one unpacks it.
    """

    def __init__(self, shard: _C.Buffers, unaligned: UnalignedShard, device: torch.device):
        self._shard, self._device, self.arena = shard, device, None
        self._rows, self._columns = unaligned.rows, shard.columns
        self._ranges = [[own] for own in unaligned.ranges(shard.columns)]
        of_whole = [(unaligned.stored_begin, unaligned.rows)]
        self._packing = _C.FlatPacking([shard], of_whole, self._ranges, unaligned.rank)
        self.outbox_bytes = self._packing.payload_bytes
        self._stored, self.arena_bytes = self._layout(self._rows, self._columns)

    def pack(self, backward: bool) -> None:
        self._packing.pack(self._payload.narrow(0, 0, self._packing.payload_bytes))

    def settle(self, slots, arena: torch.Tensor) -> None:
        (self._slot,) = slots
        self.arena = arena
        self._whole = self._over(arena, self._stored, self._rows, self._columns, owns=True)
        self._padded = [
            self._whole.buffer(number)
            for number in self._stored
            if self._whole.buffer(number).shape
            != self._shard.format.used_shape(number, self._rows, self._columns)
        ]
        self._flat = _C.FlatGather([self._whole], self._ranges, None, self.outbox_bytes)

    def unpack(self, backward: bool) -> None:
        with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(self.arena):
            for buffer in self._padded:
                buffer.zero_()
            self._flat.unpack(self._slot)


class PerPassGather(CopyGather):
    """Of a format whose backward reads another usage than its forward: each gather brings the bytes
    of its own pass, through payloads of one size and into the same memory.
    """

    def __init__(self, forward: CopyGather, backward: CopyGather):
        self._passes = forward, backward
        self._device, self.arena = forward._device, None
        self.outbox_bytes = max(one.outbox_bytes for one in self._passes)
        self.arena_bytes = max(one.arena_bytes for one in self._passes)
        for one in self._passes:
            one.outbox_bytes = self.outbox_bytes
        with torch.inference_mode(False):  # a first gather may be there
            self.present = torch.zeros((), dtype=torch.int64, device="cpu")

    def use_outbox(self, outbox: torch.Tensor, begin: int) -> None:
        super().use_outbox(outbox, begin)
        for one in self._passes:
            one.use_outbox(outbox, begin)

    def pack(self, backward: bool) -> None:
        self._passes[backward].pack(backward)

    def settle(self, slots, arena: torch.Tensor) -> None:
        self.arena = arena
        for one in self._passes:
            one.settle(slots, arena)

    def whole(self, backward: bool) -> _C.Buffers:
        return self._passes[backward].whole(backward)

    def arrive(self, backward: bool) -> _C.Buffers:
        """As _C.WeightGather.arrive: graphs that have saved `present` want its new value."""
        with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(self.present):
            self.present.fill_(1 << backward)  # a bit for each usage
        return self.whole(backward)

    def unpack(self, backward: bool) -> None:
        self._passes[backward].unpack(backward)

    def copy_scales(self, backward: bool) -> None:
        self._passes[backward].copy_scales(backward)


def gather_of(store: Store, both: bool, make: Callable[[_C.Buffers], CopyGather]) -> CopyGather:
    """The gather of a shard. `make`: one that brings all buffers of some bytes; `both`: every
    gather shall serve both passes.
    """
    bytes = store.bytes
    if both or store.format.gather != "by pass" or len(bytes.usages) < len(USAGES):
        return make(bytes)
    return PerPassGather(*(make(buffers.only(bytes, usage)) for usage in USAGES))


def _moved(tensor: torch.Tensor | None, device: torch.device, copy: bool) -> torch.Tensor | None:
    return None if tensor is None else tensor.to(device, copy=copy)


def pieces_of(shape: torch.Size, dim: int, world: int, shard_rows: int) -> list[Piece]:
    """The shards of a weight as a matrix, cut into rows (dim is 0), columns (dim is the last), or
    rows of each expert.
    """
    rows, columns = shape[:-1].numel(), shape[-1]
    if dim == 0:
        begins = [min(rank * shard_rows, rows) for rank in range(world)]
        return [_whole(Region(one, min(shard_rows, rows - one), 0, columns)) for one in begins]
    if dim == len(shape) - 1:
        part = columns // world
        return [_whole(Region(0, rows, rank * part, part)) for rank in range(world)]
    experts, each = shape[0], shape[1]
    part = each // world
    return [
        Piece(
            (experts * part, columns),
            [
                (
                    Region(expert * part, part, 0, columns),
                    Region(expert * each + rank * part, part, 0, columns),
                )
                for expert in range(experts)
            ],
        )
        for rank in range(world)
    ]


def _whole(region: Region) -> Piece:
    """A shard that lies together."""
    return Piece(region.shape, [(Region(0, region.rows, 0, region.columns), region)])
