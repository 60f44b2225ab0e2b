"""Gathers whose pieces are copied into the whole, in the place of _C.WeightGather's that arrive
there: of weights that are cut into columns, or into the rows of each expert (another dimension than
the first in shard_placement_fn), of shards on the CPU that arrive on another device
(CPUOffloadPolicy), and of shards that share blocks.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from narrowcast import _C
from narrowcast.fsdp import torch_names
from narrowcast.registry import BUFFERS, USAGES
from narrowcast.tensor import buffers
from narrowcast.tensor.region import Region
from narrowcast.tensor.store import Store
from narrowcast.tensor.unaligned import UnalignedShard

_ALIGNMENT = 256  # of a buffer within a payload: where every dtype may begin


class CopyGather:
    """What _C.WeightGather is, of one payload that is packed for every gather, as FSDP2's hooks
    call it:

        use_send_buffer, payloads       once: where this rank packs, what it sends
        receive_into                    once: lays the whole weight out where payloads arrive
        pack                            a gather begins
        unpack                          it has ended: `gathered` is the whole weight

    Where a format's backward reads another usage than its forward, each gather brings the bytes of
    its own pass, through payloads of one size and into the same memory.

    both        every gather serves both passes
    copies_of   what is copied of a shard's bytes
    """

    shared_bytes = 0  # it has the one payload for itself
    carries_alike = False  # it is packed for each pass

    def __init__(self, store: Store, both: bool, copies_of: Callable[[_C.Buffers], Copies]):
        bytes, by_pass = store.bytes, store.format.gather == "by pass"
        parts = [bytes]
        if by_pass and not both and len(bytes.usages) == len(USAGES):
            whole = buffers.full_region(bytes)
            parts = [bytes.part(*whole, (usage,)) for usage in USAGES]
        self._copies = [copies_of(part) for part in parts]  # of forward and backward, or of both
        self.send_bytes = max(one.send_bytes for one in self._copies)
        self.unpacked_bytes = max(one.unpacked_bytes for one in self._copies)

    def _of(self, backward: bool) -> Copies:
        return self._copies[-1 if backward else 0]

    def use_send_buffer(self, memory: torch.Tensor, begin: int) -> None:
        self._payload = memory.narrow(0, begin, self.send_bytes)

    def payloads(self, backward: bool) -> list[torch.Tensor]:
        return [self._payload]

    def pack(self, backward: bool) -> None:
        """A launch for each buffer; of shards that share blocks one."""
        self._of(backward).pack(self._payload)

    def receive_into(self, received: list[torch.Tensor], unpacked: torch.Tensor) -> None:
        self._unpacked = unpacked
        for one in self._copies:
            one.receive_into(received[0], unpacked, self.send_bytes)

    def gathered(self, backward: bool) -> _C.Buffers:
        return self._of(backward).gathered

    def unpack(self, backward: bool) -> None:
        """A launch for each buffer of each rank; of shards that share blocks one."""
        # Not counted as writes: graphs that have saved them for a backward want the new values.
        with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(self._unpacked):
            self._of(backward).unpack()


class Copies:
    """The bytes of a shard that a gather brings, and the whole matrix in the memory that they are
    unpacked into.

    shard          those bytes
    rows, columns  of the whole
    """

    send_bytes: int
    gathered: _C.Buffers | None = None

    def __init__(self, shard: _C.Buffers, rows: int, columns: int):
        self._shard, self._rows, self._columns = shard, rows, columns
        self._begins, self.unpacked_bytes = self._layout(rows, columns)

    def pack(self, payload: torch.Tensor) -> None:
        """A whole weight that is there gets what spans the tensor, too: all ranks have the same."""
        if self.gathered is not None:
            copied = tuple(one for one in buffers.spanning_of(self.gathered) if one is not None)
            with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(copied):
                buffers.copy_spanning(self.gathered, self._shard)

    def receive_into(self, received: torch.Tensor, unpacked: torch.Tensor, size: int) -> None:
        """Lays the whole out in `unpacked`. Payloads of `size` bytes arrive in `received`."""
        self.gathered = self._over(unpacked, self._begins, self._rows, self._columns, owns=True)

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
    ) -> _C.Buffers:
        """A matrix whose buffers lie in a memory. What spans the tensor is the shard's, or a copy
        of it if the matrix owns it.
        """
        shard = self._shard
        every = [*shard.buffers, shard.amax, shard.history]
        for number, tensor in enumerate(every):
            if number in begins:
                shape = shard.format.buffer_shape(number, rows, columns)
                size = torch.Size(shape).numel() * tensor.element_size()
                here = memory.narrow(0, begins[number], size)
                every[number] = here.view(tensor.dtype).view(shape)
            elif tensor is not None:
                every[number] = tensor.to(memory.device, copy=owns)
        return _C.Buffers(shard.format, rows, columns, every[:4], *every[4:])


# Of each rank: regions of its shard, as a matrix, each with where it lies in the whole.
Pieces = list[list[tuple[Region, Region]]]


class PieceCopies(Copies):
    """Of regions of the whole: a payload holds the buffers of a shard, one after the other. The
    first rank's shard is the largest.
    """

    def __init__(self, shard: _C.Buffers, pieces: Pieces):
        places = [there for piece in pieces for _, there in piece]
        rows = max(region.row_end for region in places)
        super().__init__(shard, rows, max(region.column_end for region in places))
        self._pieces = pieces
        self._sent, self.send_bytes = self._layout(*_shape(pieces[0]))

    def pack(self, payload: torch.Tensor) -> None:
        super().pack(payload)
        shard = self._shard
        if shard.rows > 0:
            packed = self._over(payload, self._sent, shard.rows, shard.columns)
            every = buffers.full_region(shard)
            buffers.copy_region(packed, every, shard, every)

    def receive_into(self, received: torch.Tensor, unpacked: torch.Tensor, size: int) -> None:
        super().receive_into(received, unpacked, size)
        self._unpacked = unpacked
        self._arriving = [
            (self._over(payload, self._sent, *_shape(piece)), piece)
            for payload, piece in zip(received.split(size), self._pieces, strict=True)
            if 0 not in _shape(piece)
        ]

    def unpack(self) -> None:
        self._unpacked.zero_()  # the padding
        for arrived, piece in self._arriving:
            for here, there in piece:
                buffers.copy_region(self.gathered, there, arrived, here)


def _shape(piece: list[tuple[Region, Region]]) -> tuple[int, int]:
    """The rows and columns of a shard, whose last region ends with it."""
    last, _ = piece[-1]
    return last.row_end, last.column_end


def pieces_of(parameter) -> Pieces:
    """The shards of an FSDPParam as a matrix, cut into rows, columns, or rows of each expert."""
    shape, dim = torch_names.full_shape(parameter), torch_names.cut_dimension(parameter)
    world = torch_names.world(parameter)
    rows, columns = shape[:-1].numel(), shape[-1]
    if dim == len(shape) - 1:
        part = columns // world
        here = Region(0, rows, 0, part)
        return [[(here, here._replace(column=rank * part))] for rank in range(world)]
    # Rows are those of one expert.
    experts, each = (1, rows) if dim == 0 else shape[:2]
    part = torch_names.shard_rows(parameter) if dim == 0 else each // world
    pieces = []
    for rank in range(world):
        begin = min(rank * part, each)
        own = min(part, each - begin)
        here = [Region(expert * own, own, 0, columns) for expert in range(experts)]
        there = [Region(expert * each + begin, own, 0, columns) for expert in range(experts)]
        pieces.append([*zip(here, there, strict=True)])
    return pieces


class UnalignedCopies(Copies):
    """Of shards that share blocks: each rank sends the bytes of its own elements, as flat shards
    do. One launch packs and one unpacks them.
    """

    def __init__(self, shard: _C.Buffers, unaligned: UnalignedShard):
        super().__init__(shard, unaligned.rows, shard.columns)
        self._unaligned = unaligned
        place = unaligned.stored_begin, unaligned.rows, 0
        self._packing = _C.FlatGather([shard], [place], self._ranges(), unaligned.rank)
        self.send_bytes = self._packing.payload_bytes

    def _ranges(self) -> list[list[tuple[int, int]]]:
        """The elements of each rank. Made anew each time: they grow with the number of ranks."""
        return [[own] for own in self._unaligned.ranges(self._shard.columns)]

    def pack(self, payload: torch.Tensor) -> None:
        super().pack(payload)
        self._packing.pack(payload.narrow(0, 0, self.send_bytes))

    def receive_into(self, received: torch.Tensor, unpacked: torch.Tensor, size: int) -> None:
        super().receive_into(received, unpacked, size)
        used_shape = self._shard.format.used_shape
        stored = ((number, self.gathered.buffer(number)) for number in self._begins)
        self._padded = [
            buffer
            for number, buffer in stored
            if buffer.shape != used_shape(number, self._rows, self._columns)
        ]
        self._received = received
        self._flat = _C.FlatGather([self.gathered], self._ranges(), None, size)

    def unpack(self) -> None:
        for buffer in self._padded:
            buffer.zero_()
        self._flat.unpack(self._received)
