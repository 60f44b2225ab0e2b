"""A quantized weight among those that FSDP2 gathers together, and the gather that it has."""

from __future__ import annotations

from functools import partial

import torch

from narrowcast import _C
from narrowcast.fsdp import (
    copy_gather,
    per_pass_gather,
    rank_consistency,
    torch_names,
    torch_parameters,
    unaligned_shards,
)
from narrowcast.fsdp.receive_buffers import Slots
from narrowcast.tensor.store import Store

Gather = _C.WeightGather | copy_gather.PiecewiseGather


class Member:
    """A quantized weight of a group: its shard, its gathers, its whole shape, its payloads by pass
    (forward, backward), and where they arrive: None where FSDP2 makes the room.
    """

    __slots__ = ("gather", "payloads", "room", "shape", "store")

    def __init__(self, store: Store, shape: torch.Size, gather: Gather):
        self.store, self.shape, self.gather = store, shape, gather
        self.payloads: tuple = ()
        self.room: tuple[Slots, int] | None = None

    def arena(self, slots: list[torch.Tensor]) -> torch.Tensor | None:
        """What slots are unpacked into; None if they are the whole."""
        if self.gather.arena_bytes == 0:
            return None
        if self.room is None:
            with torch.inference_mode(False):
                return slots[0].new_empty(self.gather.arena_bytes)
        memory, number = self.room
        return memory.arena(number)

    def slot_sizes(self, world: int) -> list[int]:
        """Bytes of what FSDP2 fills with the payloads of all ranks, and of the arena."""
        return [*(payload.nbytes * world for payload in self.payloads[0]), self.gather.arena_bytes]


def member_of(group, parameter, store: Store) -> Member:
    """With the gather that its shards want."""
    torch_parameters.adapt(parameter, torch_names.reshards_to_smaller_mesh(group))
    shape, world = torch_names.whole_shape(parameter), torch_names.world(parameter)
    both = rank_consistency.serves_both(group, store)
    device = torch_names.offloading_device(parameter)
    there = device or store.bytes.device
    if store.place is not None and store.bytes.is_plain:  # estimates take rows, of the same size
        make = partial(unaligned_shards.StraddlingGather, place=store.place, device=there)
        return Member(store, shape, per_pass_gather.gather_of(store, both, make))
    dim, shard_rows = torch_names.cut_dimension(parameter), torch_names.shard_rows(parameter)
    if dim != 0 or device is not None:
        pieces = copy_gather.pieces_of(shape, dim, world, shard_rows)
        make = partial(copy_gather.PiecewiseGather, pieces=pieces, device=there)
        return Member(store, shape, per_pass_gather.gather_of(store, both, make))
    gather = _C.WeightGather(
        shard=store.bytes,
        rows=shape[:-1].numel(),
        shard_rows=shard_rows,
        world=world,
        both=both,
        shares=world > 1,
    )
    return Member(store, shape, gather)
