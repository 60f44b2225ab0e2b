"""Steps that torch.amp.GradScaler has skipped, because a gradient has overflowed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from narrowcast import ranks
from narrowcast.optimizer import members
from narrowcast.tensor import dtensors

if TYPE_CHECKING:
    from narrowcast.optimizer import FusedAdam


def is_skipped(optimizer: FusedAdam) -> bool:
    """Whether `found_inf` is set, on any rank that has parts of the same parameters: all skip a
    step or none does, for steps may be collective, and one process would have skipped it.
    """
    found_inf = getattr(optimizer, "found_inf", None)
    if found_inf is None:
        return False
    every = (parameter for _, parameter, _ in members.named(optimizer.param_groups))
    groups = {dtensors.shard_group(one): dtensors.device_of(one) for one in every}
    groups |= {one.group: one.device for one in optimizer.fused}
    groups.pop(None, None)
    # A GradScaler that has seen no gradient on this rank gives the number 0.
    return ranks.is_on_any(float(found_inf) != 0, groups)
