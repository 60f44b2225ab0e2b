"""What surrounds a fused step: hooks and profilers see it, GradScaler has it skipped, and
torch calls it where no parameter is to change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.distributed as dist
from torch.autograd import profiler
from torch.optim import optimizer as torch_optimizer

from narrowcast import ranks
from narrowcast.optimizer import options, parameters
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
    step or none does, because a step may be collective. With capturable=True kernels look at it.
    """
    if options.is_capturable(optimizer):
        return False
    found_inf = _found_inf(optimizer)
    return found_inf is not None and float(found_inf) != 0


def _found_inf(optimizer: FusedOptimizer) -> float | torch.Tensor | None:
    """GradScaler's flag, the largest of any rank that has parts of the same parameters."""
    found_inf = getattr(optimizer, "found_inf", None)
    if found_inf is not None and (groups := _groups_of(optimizer)):
        # A GradScaler that has seen no gradient on this rank gives the number 0.
        found_inf = ranks.largest(_on(found_inf, next(iter(groups.values()))), groups)
    return found_inf


def _groups_of(optimizer: FusedOptimizer) -> dict[dist.ProcessGroup, torch.device]:
    """Those of ranks that have parts of the same parameters, each with a device."""
    every = (parameter for _, parameter, _ in parameters.named(optimizer.param_groups))
    groups = {dtensors.shard_group(one): dtensors.device_of(one) for one in every}
    groups |= {one.group: one.device for one in optimizer.flat_updates}
    groups.pop(None, None)
    return groups


class Amp(NamedTuple):
    """What GradScaler has set: numbers, or for kernels tensors on their device."""

    grad_scale: float | torch.Tensor | None = None
    found_inf: torch.Tensor | None = None

    def on(self, device: torch.device) -> Amp:
        """Tensors, float32 of one element."""
        return Amp(*(_on(one, device) for one in self))


def _on(given, device: torch.device) -> torch.Tensor | None:
    if given is None:
        return None
    if isinstance(given, torch.Tensor):
        # Without a wait the host would read before the copy has arrived.
        return given.to(device, torch.float32, non_blocking=device.type != "cpu")
    return torch.full((), given, dtype=torch.float32, device=device)


def amp_of(optimizer: FusedOptimizer, counted: bool) -> Amp:
    """If GPUs count steps (`counted`), no host waits, and found_inf is the largest of any rank."""
    scale = getattr(optimizer, "grad_scale", None)
    if not counted:
        return Amp(None if scale is None else float(scale))
    return Amp(scale, _found_inf(optimizer))


def is_captured() -> bool:
    """Whether the present stream's work becomes a CUDA graph."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def check_capture(optimizer: FusedOptimizer) -> None:
    """RuntimeError while a CUDA graph is captured that cannot take the step."""
    if is_captured() and not options.is_capturable(optimizer):
        more = "pass capturable=True, or c" if optimizer.can_be_captured else "C"
        raise RuntimeError(
            f"{optimizer.name}: a CUDA graph is being captured, and steps are counted on the host, "
            f"so each replay would take the same step: {more}apture forward and backward alone"
        )


def check_warm(optimizer: FusedOptimizer, why: str) -> None:
    """RuntimeError while a CUDA graph is captured, whose replays would repeat what is done once."""
    if is_captured():
        raise RuntimeError(
            f"{optimizer.name}: a CUDA graph is being captured, and {why}, which replays must not "
            "repeat: take some steps before the capture, with gradients of the same parameters, "
            "and write to no weight between them and the capture"
        )


def is_estimate() -> bool:
    """Whether the step runs in a FakeTensorMode, as estimates of memory do: it makes state, and
    there are no bytes to update.
    """
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None
