"""Values in bfloat16: which rules update them, and the residuals that an optimizer's state keeps of
them, eight bits more of each. Of which value a residual is, the weight's store knows: after a write
by anything but a step it is 0, and after a load it is of the value that the next step finds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from narrowcast.fsdp import sharding
from narrowcast.master.weight import MasterWeight
from narrowcast.optimizer import options
from narrowcast.tensor import dtensors

if TYPE_CHECKING:
    from narrowcast.optimizer import FusedOptimizer

KEY = "residual"  # of a parameter's state


def check_bits(bits: int) -> None:
    """ValueError for a number that an optimizer cannot keep."""
    if bits not in (0, 8):
        raise ValueError(
            f"residual_bits is {bits!r}, and must be 8, or 0 for values that are rounded "
            "stochastically"
        )


def _is_narrow(parameter: torch.Tensor) -> bool:
    local = dtensors.local_of(parameter)
    return isinstance(local, MasterWeight) and local.value.dtype == torch.bfloat16


def _is_kept(optimizer: FusedOptimizer, parameter: torch.Tensor) -> bool:
    return optimizer.residual_bits != 0 and _is_narrow(parameter)


def is_drawn(optimizer: FusedOptimizer, parameter: torch.Tensor) -> bool:
    """Whether its new values are rounded up or down by chance."""
    return optimizer.residual_bits == 0 and _is_narrow(parameter)


def check(optimizer: FusedOptimizer, parameter: torch.Tensor, group: dict) -> None:
    """NotImplementedError for a bfloat16 value that a group's rule does not update."""
    rule = optimizer.rule_of(group)
    if _is_narrow(parameter) and not options.rule_facts(rule)[2]:
        name = dtensors.local_of(parameter).config.name or "a weight"
        raise NotImplementedError(
            f"{optimizer.name}: {name} has a bfloat16 value, and the rule {rule} updates float32 "
            "ones: use nc.optim.AdamW or an optimizer of torch's, or "
            "nc.convert(..., value_dtype=torch.float32)"
        )


def zeros(optimizer: FusedOptimizer, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
    """A state's entry for a value that no step has left yet; none if it is to have none."""
    if not _is_kept(optimizer, parameter):
        return {}
    local = dtensors.local_of(parameter)
    with torch.inference_mode(False):  # of whose tensors torch counts no writes
        made = torch.zeros(local.shape, dtype=torch.int8, device=local.device)
    return {KEY: dtensors.like(parameter, made)}


def fit(optimizer: FusedOptimizer) -> None:
    """Gives every state of a bfloat16 value its residual, and takes others away: values may have
    got another dtype, and states may have been changed by hand.
    """
    for parameter, state in optimizer.state.items():
        if not _is_kept(optimizer, parameter):
            state.pop(KEY, None)
        elif state and KEY not in state:
            state.update(zeros(optimizer, parameter))


def outdated(optimizer: FusedOptimizer) -> list[torch.Tensor]:
    """The residuals of values that were written to since."""
    found = []
    for parameter, state in optimizer.state.items():
        if KEY in state and _is_narrow(parameter):
            residual = dtensors.local_of(state[KEY])
            if not sharding.store_of_weight(parameter).is_current(residual):
                found.append(residual)
    return found


@torch.no_grad()
def follow_writes(optimizer: FusedOptimizer) -> None:
    """Sets them to 0, as the next step would."""
    for residual in outdated(optimizer):
        residual.zero_()
