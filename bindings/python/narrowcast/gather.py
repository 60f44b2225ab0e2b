"""What an all-gather carries: a shard's bytes packed for the wire, and a whole matrix made of them.

On the wire a scale matrix has neither padding nor repetition, every rank sends as many rows as the
first, and where each pass gathers its own usage, both payloads have the size of the larger: FSDP2
fixes a payload's size once and does not check it.
"""

from __future__ import annotations

import dataclasses
import math

import torch

from narrowcast import spanning
from narrowcast.buffers import corner
from narrowcast.matrix import Matrix
from narrowcast.registry import BUFFERS, USAGES, Format, buffers_of


@dataclasses.dataclass(frozen=True)
class Segment:
    """A buffer's place in a rank's payload: bytes begin to end, `shape` entries of `dtype`."""

    buffer: int
    begin: int
    end: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    def of(self, payload: torch.Tensor) -> torch.Tensor:
        """Its entries in payloads [..., bytes]."""
        entries = payload[..., self.begin : self.end].view(self.dtype)
        return entries.view(*payload.shape[:-1], *self.shape)


@dataclasses.dataclass(frozen=True)
class Weight:
    """A weight and its shards, of shard_rows rows each; the last ones may have fewer, or none."""

    format: Format
    rows: int
    columns: int
    shard_rows: int
    world: int

    def shape(self, buffer: int) -> tuple[int, ...]:
        return self.format.buffer_shape(buffer, self.rows, self.columns)


class Gather:
    """The payloads of one weight.

    carried   the usages that each kind of gather brings: {"rowwise": ...} if columnwise is derived
              after arrival, {"both": ...} if every gather must serve both passes, else one kind a
              pass, {"rowwise": ..., "columnwise": ...}
    payloads  for each kind, the segments of each payload
    sizes     the bytes of each payload, equal for all kinds and ranks
    in_place  for each buffer that needs no memory but its slot's: which slot, and the segment
    """

    def __init__(self, weight: Weight, both: bool):
        self.weight, self.format = weight, weight.format
        if self.format.gather == "rowwise":
            self.carried = {"rowwise": ("rowwise",)}
        elif both:
            self.carried = {"both": USAGES}
        else:
            self.carried = {usage: (usage,) for usage in USAGES}
        self.payloads = {kind: self._payloads(usages) for kind, usages in self.carried.items()}
        alternatives = zip(*self.payloads.values(), strict=True)
        self.sizes = [max(segments[-1].end for segments in one) for one in alternatives]
        self.in_place = {}
        for payloads in self.payloads.values():
            for slot, segments in enumerate(payloads):
                for segment in segments:
                    if self._arrives_in_place(
                        segment, segment.end - segment.begin == self.sizes[slot]
                    ):
                        self.in_place[segment.buffer] = slot, segment

    def kind(self, backward: bool) -> str:
        """Which kind of gather a pass asks for."""
        if len(self.carried) == 2:
            return "columnwise" if backward else "rowwise"
        return next(iter(self.carried))

    def _payloads(self, usages) -> list[list[Segment]]:
        """One payload for each data buffer, so that what arrives can be the buffer itself, and one
        for all scales; a single one on a mesh of one rank, where FSDP2 copies no other.
        """
        pairs = [buffers_of(usage) for usage in usages]
        scales = [scale for _, scale in pairs if self.format.cuts[scale].dimension >= 0]
        groups = [*([data] for data, _ in pairs), scales]
        if self.weight.world == 1:
            groups = [[buffer for group in groups for buffer in group]]
        return [self._segments(group) for group in groups if group]

    def _segments(self, buffers: list[int]) -> list[Segment]:
        segments, end = [], 0
        for buffer in buffers:
            shape = self._compact_shape(buffer, self.weight.shard_rows)
            dtype = self.format.buffer_dtype(buffer)
            begin = -(-end // dtype.itemsize) * dtype.itemsize
            end = begin + math.prod(shape) * dtype.itemsize
            segments.append(Segment(buffer, begin, end, shape, dtype))
        return segments

    def _compact_shape(self, buffer: int, rows: int) -> tuple[int, ...]:
        """A buffer's shape without padding and repetition."""
        used = self.format.used_shape(buffer, rows, self.weight.columns)
        repeat = self.format.cuts[buffer].repeat
        return tuple(-(-n // times) for n, times in zip(used, repeat, strict=True))

    def _arrives_in_place(self, segment: Segment, alone: bool) -> bool:
        """Whether the shards of a buffer, one after the other as they arrive, are the whole one."""
        weight = self.weight
        shard = self.format.buffer_shape(segment.buffer, weight.shard_rows, weight.columns)
        whole = weight.shape(segment.buffer)
        by_rows = self.format.cuts[segment.buffer].dimension == 0 and shard == segment.shape
        return by_rows and (alone or weight.world == 1) and whole[0] <= weight.world * shard[0]

    # ---- sending ----

    def pack(self, shard: Matrix, kind: str) -> list[torch.Tensor]:
        """The payloads of a shard, uint8, one-dimensional: its own buffers where the wire carries
        just these, else copies.
        """
        payloads = zip(self.payloads[kind], self.sizes, strict=True)
        return [self._pack(shard, segments, size) for segments, size in payloads]

    def _pack(self, shard: Matrix, segments: list[Segment], size: int) -> torch.Tensor:
        first = shard.buffers[segments[0].buffer]
        if len(segments) == 1 and segments[0].end == size and first.shape == segments[0].shape:
            return first.view(-1).view(torch.uint8)
        payload = torch.zeros(size, dtype=torch.uint8, device=first.device)
        for segment in segments:
            compact = self._compact(shard, segment.buffer)
            # a shard may have fewer rows than its place
            segment.of(payload)[corner(compact.shape)] = compact
        return payload

    def _compact(self, shard: Matrix, buffer: int) -> torch.Tensor:
        """A buffer without padding and repetition: a view."""
        used = self.format.used_shape(buffer, shard.rows, shard.columns)
        steps = zip(used, self.format.cuts[buffer].repeat, strict=True)
        return shard.buffers[buffer][tuple(slice(0, n, times) for n, times in steps)]

    # ---- receiving ----

    def room(self, slots) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The buffers of the whole matrix, over the slots that payloads arrive in; and those among
        them that have memory of their own, which FSDP2 frees and allocates again with the slots.
        """
        buffers, own = [], []
        for buffer in BUFFERS:
            shape, dtype = self.weight.shape(buffer), self.format.buffer_dtype(buffer)
            if buffer in self.in_place:
                slot, segment = self.in_place[buffer]
                end = segment.begin + math.prod(shape) * dtype.itemsize
                buffers.append(slots[slot][segment.begin : end].view(dtype).view(shape))
                continue
            buffers.append(torch.empty(shape, dtype=dtype, device=slots[0].device))
            if self.format.cuts[buffer].dimension >= 0:
                own.append(buffers[-1])
        return buffers, own

    def fill(self, whole: Matrix, slots, kind: str, shard: Matrix) -> None:
        """Makes the bytes of the whole matrix from what arrived. What spans the tensor is equal in
        all shards, and comes from this rank's.
        """
        for slot, segments, size in zip(slots, self.payloads[kind], self.sizes, strict=True):
            payloads = slot.view(self.weight.world, size)
            for segment in segments:
                if segment.buffer not in self.in_place:
                    self._unpack(
                        whole.buffers[segment.buffer], segment.of(payloads), segment.buffer
                    )
        spanning.copy(whole, shard)
        whole.filled = set(self.carried[kind])

    def _unpack(self, target: torch.Tensor, pieces: torch.Tensor, buffer: int) -> None:
        """One buffer from its shards, [world, ...] as they are on the wire."""
        cut = self.format.cuts[buffer]
        compact = torch.cat(pieces.unbind(), dim=cut.dimension)
        for dimension, times in enumerate(cut.repeat):
            if times > 1:
                compact = compact.repeat_interleave(times, dim=dimension)
        used = self.format.used_shape(buffer, self.weight.rows, self.weight.columns)
        if used != target.shape:
            target.zero_()  # the padding: the memory may be new
        target[corner(used)] = compact[corner(used)]
