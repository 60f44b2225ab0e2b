"""nc.quantize_master_weights: the bytes of weights from shards of their masters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from narrowcast import _C
from narrowcast.flat import shards
from narrowcast.flat.exchange import Exchange
from narrowcast.flat.gather import invalidate_columnwise, note_writes
from narrowcast.flat.shards import FlatShard, Ranges
from narrowcast.ranks import Fact, debugging
from narrowcast.tensor.casting import RngKey
from narrowcast.tensor.quantization import check_rounding, check_source, check_word


def quantize_master_weights(
    model_weights: Sequence[torch.Tensor],
    master_weights: Sequence[torch.Tensor | None],
    start_offsets: Sequence[int | None],
    group: dist.ProcessGroup | None = None,
    fsdp_shard_model_weights: Sequence[torch.Tensor | None] | None = None,
    manual_post_all_gather_processing: bool = False,
    *,
    source: str = "master",
    rounding: str = "nearest",
    seed: int = 0,
    step: int = 0,
) -> None:
    """Casts this rank's shards of master weights into the weights' bytes, as a distributed
    optimizer does after its step. It is Transformer Engine's call, for every format.

    model_weights   nc.QuantizedTensors (of nc.quantize), whole on every rank, on one device; the
                    same list in the same order on all ranks
    master_weights  float32 tensors of any shape, each taken as a run of elements; None for a weight
                    of which this rank owns nothing
    start_offsets   the index of each shard's first element in the flattened weight
    group           the ranks whose shards make up the weights; None: all ranks, or this process
                    alone if torch.distributed is not initialised
    fsdp_shard_model_weights
                    uint8 [bytes], contiguous, on the weight's device, or None: these also receive
                    the rowwise codes of this rank's elements, from the byte of the first element to
                    the byte of the last
    manual_post_all_gather_processing
                    until when columnwise bytes that follow from rowwise ones are absent. False:
                    until they are read first; True: until nc.post_all_gather_processing
    source          "master", or "bf16" to round masters to bfloat16 first
    rounding, seed, step
                    as in nc.quantize; weight i of the list has the seed `seed` + i

    Afterwards every byte that holds an element of this rank is that of a cast of the whole master,
    and so is the scale of every block that holds such an element. All else is unchanged, and
    arrives with a gather. A scale that spans the tensor is right on all ranks, and so is amax. A
    delayed scale moves on, as in an optimizer's step.

    The first call with a list, or after Module.to, is collective, and the host waits, because ranks
    exchange which elements they own. Later calls reduce once, if a cut divides a block or a scale
    spans a tensor. Call nc.flat.forget on all ranks before weights are cut in another way.

    TypeError or ValueError, with nothing changed: no such weight or master shard. ValueError on all
    ranks: the shards do not cover the weights once. DisagreementError on all ranks: they hand in
    different weights in a first call.
    """
    group = shards.group_or_all(group)
    check_source(source)
    check_rounding(rounding)
    check_word("seed", seed)
    check_word("step", step)
    own = shards.read(model_weights, master_weights, start_offsets)
    targets = _checked_targets(own, fsdp_shard_model_weights)
    if not own:
        return
    debugging.compare(
        "quantize_master_weights", lambda: _facts_of_shards(own, group, source, rounding, seed)
    )
    draws = None
    if rounding == "stochastic":
        draws = [RngKey((int(seed) + i) % 2**64, int(step), 0) for i in range(len(own))]
    exchange = _exchange_of(own, group)
    exchange.begin()
    exchange.collect([shard.master for shard in own], source == "bf16", draws)
    exchange.reduce()
    exchange.finish(source == "bf16", draws is not None)
    for shard in own:
        invalidate_columnwise(shard.store, manual_post_all_gather_processing)
    note_writes(model_weights)
    for shard, target in targets:
        target.view(-1).copy_(_own_codes(shard))


class _Known(NamedTuple):
    """Of a list of weights that was handed in: the exchange, and what this rank and all own."""

    exchange: Exchange
    own: list[tuple[int, int]]
    ranges: Ranges


_known: WeakKeyDictionary = WeakKeyDictionary()  # by the store of a list's first weight


def forget(weights: Sequence[torch.Tensor]) -> None:
    """Forgets which rank owns which elements: the next quantize_master_weights asks the ranks
    again. Call it on all ranks, with weights that were handed in together.
    """
    for weight in weights:
        _known.pop(weight._store, None)


def _exchange_of(own: list[FlatShard], group) -> Exchange:
    """That of a list of weights, with the bytes that they have now. Collective in the first call
    with it.
    """
    known = _known.get(own[0].store)
    runs = [(one.begin, one.end) for one in own]
    if known is not None and known.own != runs:
        raise ValueError(
            "quantize_master_weights got other weights or other shards than when these weights "
            "were handed in first: call narrowcast.flat.forget(weights) on all ranks before they "
            "are cut in another way"
        )
    if known is None or not known.exchange.is_current([shard.store for shard in own]):
        ranges = shards.exchange_ranges(own, group) if known is None else known.ranges
        known = _known[own[0].store] = _Known(Exchange(own, ranges, group), runs, ranges)
    return known.exchange


def _facts_of_shards(own: list[FlatShard], group, *options) -> list[Fact]:
    """What the debug mode compares at a call."""
    return [
        (group, one.store.bytes.device, f"weight {place}, {shards.line(one.store)}, {options}")
        for place, one in enumerate(own)
    ]


def _checked_targets(own: list[FlatShard], targets) -> list[tuple[FlatShard, torch.Tensor]]:
    """The shards whose codes go to a tensor as well, and that. TypeError or ValueError, with the
    place in the list, for a tensor that cannot take them.
    """
    if targets is None:
        return []
    if len(targets) != len(own):
        raise ValueError(
            f"fsdp_shard_model_weights has {len(targets)} entries, and model_weights {len(own)}: "
            "hand in a tensor or None for each weight"
        )
    every = []
    for place, (shard, target) in enumerate(zip(own, targets, strict=True)):
        if target is None or shard.master is None:
            continue
        what = f"weight {place}: its entry of fsdp_shard_model_weights"
        if not isinstance(target, torch.Tensor):
            raise TypeError(f"{what} is a {type(target).__name__}, not a uint8 tensor")
        begin, end = _code_range(shard)
        _C.check_bytes(target, end - begin, shard.store.bytes.device, what)
        every.append((shard, target))
    return every


def _code_range(shard: FlatShard) -> tuple[int, int]:
    """Of the rowwise bytes those that hold its elements: begin and end."""
    bits = shard.store.format.rowwise.element_bits
    return shard.begin * bits // 8, -(-shard.end * bits // 8)


def _own_codes(shard: FlatShard) -> torch.Tensor:
    """The rowwise bytes that hold its elements."""
    return shard.store.bytes.buffer(0).view(-1)[slice(*_code_range(shard))]
