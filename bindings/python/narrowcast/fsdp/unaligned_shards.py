"""Gathers of weights whose shards share blocks: each rank sends the bytes of its own elements, as
flat shards do.
"""

from __future__ import annotations

import torch

from narrowcast import _C
from narrowcast.fsdp.copy_gather import PiecewiseGather
from narrowcast.tensor.unaligned_shard import Place


class StraddlingGather(PiecewiseGather):
    """Of a shard with a Place; one launch packs and one unpacks it."""

    def __init__(self, shard: _C.Buffers, place: Place, device: torch.device):
        self._shard, self._device, self.arena = shard, device, None
        self._rows, self._columns = place.rows, shard.columns
        self._ranges = [[own] for own in place.ranges(shard.columns)]
        of_whole = [(place.first, place.rows)]
        self._packing = _C.FlatPacking([shard], of_whole, self._ranges, place.rank)
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
