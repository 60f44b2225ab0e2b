"""Gathers by pass: where a format's backward reads other bytes than its forward, each gather brings
those of its own pass, through payloads of one size and into the same memory.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from narrowcast import _C
from narrowcast.fsdp.copy_gather import PiecewiseGather
from narrowcast.registry import USAGES
from narrowcast.tensor import buffers
from narrowcast.tensor.store import Store


class GatherByPass(PiecewiseGather):
    """Of a forward that reads one usage and a backward that reads the other."""

    def __init__(self, forward: PiecewiseGather, backward: PiecewiseGather):
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


def gather_of(
    store: Store, both: bool, make: Callable[[_C.Buffers], PiecewiseGather]
) -> PiecewiseGather:
    """The gather of a shard. `make`: one that brings all buffers of some bytes; `both`: every
    gather shall serve both passes.
    """
    bytes = store.bytes
    if both or store.format.gather != "by pass" or len(bytes.usages) < len(USAGES):
        return make(bytes)
    return GatherByPass(*(make(buffers.only(bytes, usage)) for usage in USAGES))
