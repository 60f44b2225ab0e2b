"""What the owners of flat shards reduce: amaxes of tensors, and amaxes and values of blocks that
cuts divide; and the casts that need it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist

from narrowcast import _C
from narrowcast.flat.shards import FlatShard, Ranges
from narrowcast.ranks import Reduction
from narrowcast.registry import Format
from narrowcast.tensor import scale_groups
from narrowcast.tensor.casting import RngKey
from narrowcast.tensor.store import Store


class FormatShards(NamedTuple):
    """The shards of one format.

    indices in the list of all shards
    skips   float32 [indices], among the reduced words: negative where a launch leaves a shard as it
            is; None if none is skipped
    amaxes  float32 [indices], likewise: of their tensors; None in a format without
    peers   which of them share a scale; None if none do
    """

    format: Format
    indices: list[int]
    shards: _C.FlatShards
    skips: torch.Tensor | None
    amaxes: torch.Tensor | None
    peers: _C.Peers | None


class Exchange(Reduction):
    """Its words, in order: which shards to skip; amaxes of tensors; of one format after another,
    amaxes of blocks and values of elements that cuts divide. Parts of tensor parallelism have the
    first two in common, and the rest beside each other. Nothing is reduced where that is all.

    skips   SKIP or TAKE for each shard: what this rank contributes that has nothing to say
    """

    @torch.inference_mode(False)  # a first call may be there, and later ones not
    def __init__(
        self,
        shards: list[FlatShard],
        ranges: Ranges,
        group: dist.ProcessGroup | None,
        skips: Sequence[float] = (),
    ):
        indices: dict[Format, list[int]] = defaultdict(list)
        for index, shard in enumerate(shards):
            indices[shard.store.format].append(index)
        ordered = [skips[index] for some in indices.values() for index in some if skips]
        spans = sum(len(some) for format, some in indices.items() if format.tensor_amax)
        header = torch.tensor([*ordered, *[0.0] * spans], dtype=torch.float32, device="cpu")
        identity = [header.view(torch.int32)]
        flats = []
        for some in indices.values():
            own = [[of_rank[index] for index in some] for of_rank in ranges]
            flats.append(_flat_shards([shards[index] for index in some], own, identity))
        whole = torch.cat(identity)
        self.device = shards[0].store.bytes.device
        super().__init__(whole.to(self.device), group if len(whole) > len(ordered) else None)
        skipped, amaxes = self.floats[: len(ordered)], self.floats[len(ordered) :]
        self.formats: list[FormatShards] = []
        for (format, some), flat in zip(indices.items(), flats, strict=True):
            own_skips = skipped[: len(some)] if skips else None
            own_amaxes = amaxes[: len(some)] if format.tensor_amax else None
            peers = scale_groups.peers_of([shards[index].store for index in some])
            self.formats.append(FormatShards(format, some, flat, own_skips, own_amaxes, peers))
            skipped, amaxes = skipped[len(some) :], amaxes[len(some) * format.tensor_amax :]

    def is_current(self, stores: list[Store]) -> bool:
        """Whether these, of the weights, have their bytes where launches write."""
        return all(
            one.shards.are_of([stores[index].bytes for index in one.indices])
            for one in self.formats
        )

    def collect(
        self,
        masters: list[torch.Tensor | None],
        source_bf16: bool = False,
        draws: list[RngKey] | None = None,
    ) -> None:
        """Writes this rank's words of a cast of all shards: a launch for each format."""
        for one in self.formats:
            own = [masters[index] for index in one.indices]
            drawn = None if draws is None else [draws[index] for index in one.indices]
            one.shards.collect(own, one.amaxes, self.floats, source_bf16, drawn)

    def finish(self, source_bf16: bool = False, stochastic: bool = False) -> None:
        """Makes the bytes of what was collected, from the reduced words."""
        for one in self.formats:
            scale_groups.share(one.peers, one.amaxes)
            one.shards.finish(one.amaxes, self.floats, source_bf16, stochastic, one.skips)


def _flat_shards(
    own: list[FlatShard], ranges: Ranges, identity: list[torch.Tensor]
) -> _C.FlatShards:
    """Of one format; appends the words of what cuts divide of them, in each part."""
    matrices = [one.store.bytes for one in own]
    (part, parts), first_slot = own[0].part, 0
    for number in range(parts):
        if number == part:
            first_slot = sum(map(len, identity))
        shapes, cuts = [], []
        for shard, of_ranks in zip(own, zip(*ranges, strict=True), strict=True):
            shape = shard.extent[1], shard.store.columns
            if number != part:
                whole = shard.store.shard
                shape, of_ranks = whole.shapes[number], whole.ranges_of_part(number)
            shapes.append(shape)
            cuts.append([begin for begin, _ in of_ranks])
        identity.append(_C.FlatShards.identity(matrices, shapes, cuts))
    runs = [(one.begin, one.end) for one in own]
    return _C.FlatShards(matrices, [one.extent for one in own], runs, ranges, first_slot)
