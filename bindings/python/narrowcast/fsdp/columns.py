"""Gathers of weights that are cut into columns: Shard(1) of fully_shard's shard_placement_fn."""

from __future__ import annotations

import torch

from narrowcast import _C
from narrowcast.registry import BUFFERS
from narrowcast.tensor import buffers
from narrowcast.tensor.region import Region

_ALIGNMENT = 256  # of a buffer within a payload: where every dtype may begin


class _Part:
    """A buffer of a matrix, at its place in memory of uint8."""

    def __init__(self, number: int, stored: torch.Tensor, shape, begin: int):
        self.number, self._dtype, self._shape, self._begin = number, stored.dtype, shape, begin
        self._bytes = torch.Size(shape).numel() * stored.element_size()
        self.end = begin + -(-self._bytes // _ALIGNMENT) * _ALIGNMENT

    def of(self, memory: torch.Tensor, begin: int = 0) -> torch.Tensor:
        """The buffer, in memory whose first byte is at `begin`."""
        here = memory.narrow(0, begin + self._begin, self._bytes)
        return here.view(self._dtype).view(self._shape)


class ColumnGather:
    """As _C.WeightGather, of a shard [rows, columns / world]: one payload holds all its buffers.
    Every gather serves both passes. The pieces of the ranks do not lie one after the other in the
    whole, so they are copied there, buffer by buffer.
    """

    present = None  # no gather differs from another

    def __init__(self, shard: _C.Bytes, world: int):
        self._shard, self._world, self.arena = shard, world, None
        self._region = Region(0, shard.rows, 0, shard.columns)
        self._columns = shard.columns * world
        self._sent = _parts(shard, shard.columns)
        self._whole_parts = _parts(shard, self._columns)
        self.outbox_bytes, self.arena_bytes = self._sent[-1].end, self._whole_parts[-1].end

    def use_outbox(self, outbox: torch.Tensor, begin: int) -> None:
        self._payload = outbox.narrow(0, begin, self.outbox_bytes)

    def payloads(self, backward: bool) -> list[torch.Tensor]:
        return [self._payload]

    def pack(self) -> None:
        for part in self._sent:
            part.of(self._payload).copy_(self._shard.buffer(part.number))

    def settle(self, slots, arena: torch.Tensor) -> None:
        """Makes room for the whole in the arena, over the slot that the payloads arrive in."""
        (slot,) = slots
        self.arena = arena
        self._pieces = [
            self._bytes(self._sent, self._shard.columns, slot, rank * self.outbox_bytes)
            for rank in range(self._world)
        ]
        self._whole = self._bytes(self._whole_parts, self._columns, arena, 0)

    def whole(self, backward: bool) -> _C.Bytes:
        return self._whole

    arrive = whole

    def unpack(self) -> None:
        with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(self.arena):
            self.arena.zero_()  # the padding
            for rank, piece in enumerate(self._pieces):
                there = self._region._replace(column=rank * piece.columns)
                buffers.copy_region(self._whole, there, piece, self._region)

    def _bytes(self, parts: list[_Part], columns: int, memory: torch.Tensor, begin: int):
        """A matrix over a memory; what spans the tensor is this rank's own, as everywhere."""
        shard, found = self._shard, {part.number: part.of(memory, begin) for part in parts}
        spanning = [number for number in BUFFERS if shard.format.is_spanning(number)]
        every = [
            shard.buffer(number) if number in spanning else found.get(number) for number in BUFFERS
        ]
        return _C.Bytes(shard.format, shard.rows, columns, every, shard.amax, shard.history)


def _parts(shard: _C.Bytes, columns: int) -> list[_Part]:
    """What is gathered of a matrix with so many columns, one after the other."""
    parts, begin = [], 0
    for number in BUFFERS:
        stored = shard.buffer(number)
        if stored is not None and not shard.format.is_spanning(number):
            shape = shard.format.buffer_shape(number, shard.rows, columns)
            parts.append(_Part(number, stored, shape, begin))
            begin = parts[-1].end
    return parts
