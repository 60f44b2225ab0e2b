"""narrowcast.flat.fuse: an optimizer's step makes the bytes of weights in the pass that updates
shards of their masters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from narrowcast.flat import ranges, shards
from narrowcast.flat.updates import Updates, place_in
from narrowcast.flat.weights import Weights

if TYPE_CHECKING:
    from narrowcast.optimizer import FusedAdam


def fuse(
    optimizer: FusedAdam,
    model_weights: Sequence[torch.Tensor],
    master_weights: Sequence[torch.Tensor | None],
    start_offsets: Sequence[int | None],
    group: dist.ProcessGroup | None = None,
    manual_post_all_gather_processing: bool = False,
) -> None:
    """From now on optimizer.step() leaves behind what nc.quantize_master_weights would after it: it
    updates this rank's shards of master weights and writes the weights' bytes in one pass over
    memory, with one reduction at most, of what cuts divide and of amaxes of tensors.

    optimizer       a FusedAdam; may be called again for other weights, as of another process group.
                    Where a rank owns nothing: one over a group without parameters
    master_weights  float32 [elements], contiguous, on the weights' device: parameters of the
                    optimizer, which are their own masters; None where this rank owns nothing
    model_weights, start_offsets, group, manual_post_all_gather_processing
                    as in nc.quantize_master_weights

    Collective, and the host waits: ranks exchange what they own. Then step() is collective too
    where cuts divide blocks or bytes, or a scale spans a tensor: every rank calls it, also one that
    owns nothing. Ranks have gradients of the same weights, and their groups the same seeds; weight
    i of the list draws from seed + i.

    Weights may get other bytes or another memory (Module.to, share_memory): the next step writes
    those. As of any optimizer, where the model gets another tensor in the place of a weight
    (load_state_dict with assign=True), nothing changes for this one: call narrowcast.flat.unfuse
    and fuse what the model has now, on all ranks.

    Masters that are set by other means (a checkpoint) are cast by nc.quantize_master_weights. A
    copy of the optimizer is fused anew.

    TypeError or ValueError for arguments that are wrong on this rank, or shards that do not cover
    the weights once; RuntimeError on all ranks if they hand in different weights.
    """
    group = ranges.group_or_all(group)
    _check_kind(optimizer)
    own = shards.read("fuse", model_weights, master_weights, start_offsets)
    parameters = [
        None if shard.master is None else master
        for shard, master in zip(own, master_weights, strict=True)
    ]
    _check_new(optimizer, own)
    _check_masters(optimizer, parameters)
    of_all = ranges.exchange(own, group)
    if own:
        weights = Weights("those that were fused", model_weights)
        runs = [(shard.begin, shard.end) for shard in own]
        by_hand = manual_post_all_gather_processing
        optimizer.fused.append(Updates(weights, runs, parameters, of_all, group, by_hand))
        optimizer.forget_tables()


def unfuse(optimizer: FusedAdam) -> None:
    """Takes back every narrowcast.flat.fuse of an optimizer: its steps update masters alone. To be
    called on all ranks.
    """
    _check_kind(optimizer)
    optimizer.fused.clear()
    optimizer.forget_tables()


def _check_kind(optimizer) -> None:
    if not hasattr(optimizer, "fused"):
        raise TypeError(
            f"the optimizer is a {type(optimizer).__name__}, not a narrowcast.FusedAdam: with "
            "others, call nc.quantize_master_weights after their step"
        )


def _check_new(optimizer: FusedAdam, own: list[shards.Shard]) -> None:
    known = {id(store) for fused in optimizer.fused for store in fused.weights.present()}
    for place, shard in enumerate(own):
        if id(shard.store) in known:
            raise ValueError(
                f"weight {place}, a {shard.store.describe()}, has been fused with this optimizer "
                "already; shards of one process group make up a weight"
            )


def _check_masters(optimizer: FusedAdam, masters: list[torch.Tensor | None]) -> None:
    parameters = {id(one) for group in optimizer.param_groups for one in group["params"]}
    seen: dict[int, int] = {}
    for place, master in enumerate(masters):
        if master is None:
            continue
        if (first := seen.setdefault(id(master), place)) != place:
            raise ValueError(f"weight {place} has the master shard of weight {first}: each has one")
        if master.dim() != 1 or not master.is_contiguous():
            raise ValueError(
                f"weight {place}: its master shard has shape {tuple(master.shape)} and strides "
                f"{master.stride()}; one dimension, contiguous, is needed"
            )
        if id(master) not in parameters:
            raise ValueError(
                f"weight {place}: its master shard is no parameter of the optimizer: make "
                "FusedAdam over the master shards first"
            )
        if place_in(optimizer.fused, master) is not None:
            raise ValueError(
                f"weight {place}: its master shard is fused with another weight already"
            )
