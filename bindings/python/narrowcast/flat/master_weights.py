"""nc.quantize_master_weights: the bytes of weights from shards of their masters."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from narrowcast.flat import columnwise, plan, ranges, shards
from narrowcast.flat.plan import Plan
from narrowcast.flat.shards import Shard
from narrowcast.flat.weights import note_writes
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
    optimizer does after its step. The call of Transformer Engine, for every format.

    model_weights   QuantizedTensors (nc.quantize), whole on every rank, on one device; the same on
                    all ranks, in the same order
    master_weights  float32 tensors of any shape, taken as runs of elements; None where this rank
                    owns nothing of a weight
    start_offsets   the index of each shard's first element in the flattened weight
    group           the ranks whose shards make up the weights; None: all, or this process alone
                    where torch.distributed is not initialised
    fsdp_shard_model_weights
                    uint8 [bytes], contiguous, on the weight's device; None where nothing is owned:
                    where the rowwise codes of this rank's elements go as well, from the byte that
                    holds the first one to that which holds the last
    manual_post_all_gather_processing
                    columnwise bytes that follow from rowwise ones are absent after the call.
                    False: until somebody reads them; True: until nc.post_all_gather_processing
    source          "master", or "bf16" to round masters to bfloat16 first
    rounding, seed, step
                    as in nc.quantize; weight i draws from seed + i

    Afterwards each rank's own elements, and the scales of blocks that hold some, are those of a
    cast of the whole master; so is every byte that holds an own element. All else stays as it was:
    it comes with a gather. Where a scale spans the tensor, it and amax are right on all ranks. A
    delayed scale moves on, as in an optimizer's step.

    The first call with some weights is collective, and the host waits: ranks exchange what they
    own. (Bytes that Module.to has made are new; it is called on all ranks alike.) Later ones reduce
    once, and not at all if no cut divides a block and no scale spans a tensor. All ranks call it
    for the same weights in the same order. To cut weights in another way, call nc.flat.forget on
    all ranks first.

    TypeError or ValueError, and nothing changes, for arguments that are wrong on this rank, or
    shards that do not cover the weights once; RuntimeError on all ranks if they hand in different
    weights in a first call.
    """
    group = ranges.group_or_all(group)
    check_source(source)
    check_rounding(rounding)
    check_word("seed", seed)
    check_word("step", step)
    own = shards.read("quantize_master_weights", model_weights, master_weights, start_offsets)
    targets = _targets(own, fsdp_shard_model_weights)
    debugging.compare("quantize_master_weights", lambda: _facts(own, group, source, rounding, seed))
    casts = _plan_of(model_weights, own, group)
    if not own:
        return
    draws = None
    if rounding == "stochastic":
        draws = [RngKey((int(seed) + i) % 2**64, int(step), 0) for i in range(len(own))]
    casts.cast([shard.master for shard in own], source == "bf16", draws)
    for shard in own:
        columnwise.withhold(shard.store, manual_post_all_gather_processing)
    note_writes(model_weights)
    for shard, target in zip(own, targets, strict=True):
        if target is not None:
            with torch.inference_mode(target.is_inference()):
                target.copy_(_own_codes(shard))


def forget(weights: Sequence[torch.Tensor]) -> None:
    """Forgets who owns what of weights: the next quantize_master_weights asks the ranks again. To
    be called on all of them, with weights that were handed in together.
    """
    plan.drop(one for weight in weights if (one := plan.plan_of(weight)) is not None)


def _plan_of(weights, own: list[Shard], group) -> Plan | None:
    """That of a list of weights. Collective in the first call with it."""
    known = [plan.plan_of(weight) for weight in weights]
    if not any(known):
        of_all = ranges.exchange(own, group)
        return plan.keep(weights, Plan(own, of_all, group)) if own else None
    first, other = known[0], None
    if first is None or any(one is not first for one in known) or not first.is_of(own):
        other = "other weights or other shards"
    elif first.group is not group:
        other = "another process group"
    if other is not None:
        raise ValueError(
            f"quantize_master_weights got {other} than when these weights were handed in first: "
            "call narrowcast.flat.forget(weights) on all ranks before they are cut in another way"
        )
    if first.exchange.is_current([shard.store for shard in own]):
        return first
    # The bytes that the weights have now, on this rank alone.
    return plan.keep(weights, Plan(own, first.ranges, group))


def _facts(own: list[Shard], group, *options) -> list[Fact]:
    """What the debug mode compares at a call."""
    return [
        (group, one.store.bytes.device, f"weight {place}, {shards.line(one.store)}, {options}")
        for place, one in enumerate(own)
    ]


def _codes_of(shard: Shard) -> tuple[int, int]:
    """The rowwise bytes that hold its elements."""
    bits = shard.store.format.rowwise.element_bits
    return shard.begin * bits // 8, -(-shard.end * bits // 8)


def _own_codes(shard: Shard) -> torch.Tensor:
    begin, end = _codes_of(shard)
    return shard.store.bytes.buffer(0).view(-1)[begin:end]


def _targets(own: list[Shard], given) -> list[torch.Tensor | None]:
    if given is None:
        return [None] * len(own)
    shards.check_list("quantize_master_weights", "fsdp_shard_model_weights", given)
    if len(given) != len(own):
        raise ValueError(f"{len(given)} fsdp_shard_model_weights for {len(own)} weights")
    for place, (shard, target) in enumerate(zip(own, given, strict=True)):
        if target is None or shard.master is None:
            continue
        begin, end = _codes_of(shard)
        fits = isinstance(target, torch.Tensor) and target.dtype == torch.uint8
        if not fits or tuple(target.shape) != (end - begin,) or not target.is_contiguous():
            raise ValueError(
                f"weight {place}: fsdp_shard_model_weights is to be a uint8 tensor of "
                f"{end - begin} bytes, contiguous, those of elements {shard.begin} to {shard.end}"
            )
        if target.device != shard.store.bytes.device:
            raise ValueError(
                f"weight {place} is on {shard.store.bytes.device}, and its "
                f"fsdp_shard_model_weights on {target.device}"
            )
    return [None if shard.master is None else one for shard, one in zip(own, given, strict=True)]
