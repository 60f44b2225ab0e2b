"""Gathers whose pieces are copied into the whole, buffer by buffer: of weights that are cut into
columns (Shard(1) of shard_placement_fn), and of shards on the CPU that arrive on another device
(CPUOffloadPolicy).
"""

from __future__ import annotations

import torch

from narrowcast import _C
from narrowcast.registry import BUFFERS
from narrowcast.tensor import buffers
from narrowcast.tensor.region import Region

_ALIGNMENT = 256  # of a buffer within a payload: where every dtype may begin


class PiecewiseGather:
    """As _C.WeightGather, for every gather of which serves both passes: one payload holds all
    buffers of a shard, [shard_rows, columns] or less.

    regions   that of each rank's shard in the whole
    device    where the whole shall be
    """

    present = None  # no gather differs from another

    def __init__(self, shard: _C.Bytes, regions: list[Region], device: torch.device):
        self._shard, self._regions, self._device, self.arena = shard, regions, device, None
        self._rows = max(region.row_end for region in regions)
        self._columns = max(region.column_end for region in regions)
        self._sent, self.outbox_bytes = self._layout(*regions[0].shape)
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

    def _over(self, memory: torch.Tensor, begins: dict[int, int], rows: int, columns: int):
        """A matrix whose buffers lie in a memory. What spans the tensor is this rank's own, which
        is equal on all ranks.
        """
        shard, every = self._shard, []
        for number in BUFFERS:
            stored = shard.buffer(number)
            if stored is None or number not in begins:
                every.append(_moved(stored, memory.device))
                continue
            shape = shard.format.buffer_shape(number, rows, columns)
            size = torch.Size(shape).numel() * stored.element_size()
            here = memory.narrow(0, begins[number], size)
            every.append(here.view(stored.dtype).view(shape))
        spanning = (_moved(one, memory.device) for one in (shard.amax, shard.history))
        return _C.Bytes(shard.format, rows, columns, every, *spanning)

    def use_outbox(self, outbox: torch.Tensor, begin: int) -> None:
        self._payload = outbox.narrow(0, begin, self.outbox_bytes)

    def payloads(self, backward: bool) -> list[torch.Tensor]:
        return [self._payload]

    def sent(self, payloads: list[torch.Tensor]) -> list[torch.Tensor]:
        """The payloads where the gather runs."""
        return [payload.to(self._device, non_blocking=True) for payload in payloads]

    def pack(self) -> None:
        shard = self._shard
        if shard.rows == 0:
            return
        packed = self._over(self._payload, self._sent, shard.rows, shard.columns)
        whole = buffers.whole_of(shard)
        buffers.copy_region(packed, whole, shard, whole)

    def settle(self, slots, arena: torch.Tensor) -> None:
        """Makes room for the whole in the arena, over the slot that the payloads arrive in."""
        (slot,), size = slots, self.outbox_bytes
        self.arena = arena
        self._whole = self._over(arena, self._stored, self._rows, self._columns)
        self._pieces = [
            (region, self._over(slot.narrow(0, rank * size, size), self._sent, *region.shape))
            for rank, region in enumerate(self._regions)
            if not region.is_empty
        ]

    def whole(self, backward: bool) -> _C.Bytes:
        return self._whole

    arrive = whole

    def unpack(self) -> None:
        with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(self.arena):
            self.arena.zero_()  # the padding
            for region, piece in self._pieces:
                buffers.copy_region(self._whole, region, piece, buffers.whole_of(piece))
            if self._device != self._shard.device:
                buffers.copy_spanning(self._whole, self._shard)


def _moved(tensor: torch.Tensor | None, device: torch.device) -> torch.Tensor | None:
    return None if tensor is None else tensor.to(device)


def regions_of(shape: torch.Size, dim: int, world: int, shard_rows: int) -> list[Region]:
    """Of the shards of a weight as a matrix, cut into rows (dim is 0) or columns."""
    rows, columns = shape[:-1].numel(), shape[-1]
    if dim != 0:
        part = columns // world
        return [Region(0, rows, rank * part, part) for rank in range(world)]
    begins = [min(rank * shard_rows, rows) for rank in range(world)]
    return [Region(begin, min(shard_rows, rows - begin), 0, columns) for begin in begins]
