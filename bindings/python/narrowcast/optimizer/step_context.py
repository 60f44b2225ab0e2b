"""What surrounds a fused step: hooks and profilers see it, GradScaler has it skipped, and
torch calls it where no parameter is to change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.autograd import profiler
from torch.optim import optimizer as torch_optimizer

from narrowcast import ranks
from narrowcast.optimizer import parameters
from narrowcast.tensor import dtensors

if TYPE_CHECKING:
    from narrowcast.optimizer import FusedOptimizer


def has_observers(one: torch.optim.Optimizer) -> bool:
    """Whether a profiler is running, or a step of this optimizer has hooks. torch wraps the step of
    every optimizer's class in a function that names it to profilers and calls hooks: some 20 us a
    step, which a fused optimizer's takes only then.
    """
    return bool(
        profiler._is_profiler_enabled
        or one._optimizer_step_pre_hooks
        or one._optimizer_step_post_hooks
        or torch_optimizer._global_optimizer_pre_hooks
        or torch_optimizer._global_optimizer_post_hooks
    )


def is_skipped(optimizer: FusedOptimizer) -> bool:
    """Whether `found_inf` is set, on any rank that has parts of the same parameters: all skip a
    step or none does, because a step may be collective.
    """
    found_inf = getattr(optimizer, "found_inf", None)
    if found_inf is None:
        return False
    every = (parameter for _, parameter, _ in parameters.named(optimizer.param_groups))
    groups = {dtensors.shard_group(one): dtensors.device_of(one) for one in every}
    groups |= {one.group: one.device for one in optimizer.flat_updates}
    groups.pop(None, None)
    # A GradScaler that has seen no gradient on this rank gives the number 0.
    return ranks.is_on_any(float(found_inf) != 0, groups)


def check_not_captured(name: str) -> None:
    """RuntimeError while a CUDA graph is captured."""
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            f"{name}: a CUDA graph is being captured, and steps are counted on the host, so each "
            "replay would take the same step. Capture forward and backward alone"
        )


def is_estimate() -> bool:
    """Whether the step runs in a FakeTensorMode, as estimates of memory do: it makes state, and
    there are no bytes to update.
    """
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None
