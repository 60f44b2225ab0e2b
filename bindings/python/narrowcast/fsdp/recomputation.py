"""Why one gather of FSDP2 may have to serve a forward and a backward, as far as it can be seen.
Activation checkpointing: a module under it is computed again in the backward. Pipelines: their
schedules keep what a backward has gathered, and the next forward reads it. Zero-bubble pipelines
take a backward apart, which FSDP2's gathers do not allow.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from torch import nn
from torch.distributed._composable.contract import _get_registry

from narrowcast import stack_frames
from narrowcast.tensor.store import Store

# Callers of what is sharded, by the beginnings of their modules' names.
_CALLERS = "torch.utils.checkpoint", "torch.distributed.pipelining."
# Where this module was imported, there may be schedules that take a backward apart.
ZERO_BUBBLE_MODULE = "torch.distributed.pipelining._backward"


def modules_under(roots: Iterable[nn.Module]) -> set[nn.Module]:
    """The modules, of all that can be reached from these, that are under activation checkpointing:
    in torch's checkpoint_wrapper, given to its composable checkpoint, or below one whose
    `gradient_checkpointing` is set, as Hugging Face does it.
    """
    found: set[nn.Module] = set()
    for root in roots:
        for module in root.modules():
            if module not in found and _is_checkpointed(module):
                found.update(module.modules())
    return found


def is_calling() -> bool:
    """Whether torch.utils.checkpoint or a pipeline's schedule is calling. A model that calls the
    first itself, in its forward, leaves no other trace; FSDP2's hooks run within the call if it is
    of the module that is sharded.
    """
    return any(
        stack_frames.module_of(frame).startswith(_CALLERS) for frame in stack_frames.frames()
    )


def check_backward(store: Store) -> None:
    """In a backward that gathers a weight: NotImplementedError if it is the first part of one that
    a zero-bubble schedule takes apart: the input's gradient first, the weights' when there is time.
    torch looks for a stage's weights at the beginning of the first part; those that FSDP2 gathers
    after that are other objects, whose gradients it would lose without a word.
    """
    # Frames of every thread are looked at only where there may be such a schedule.
    may_be = ZERO_BUBBLE_MODULE in sys.modules
    if may_be and stack_frames.is_running("stage_backward_input", anywhere=True):
        raise NotImplementedError(
            f"{store.describe()}: a zero-bubble schedule takes the backward apart, and torch would "
            "lose the gradients of weights that FSDP2 gathers in its first part. Keep them after "
            "the forward: fully_shard(..., reshard_after_forward=False) for all modules of a stage"
        )


def _is_checkpointed(module: nn.Module) -> bool:
    # By the names of classes: to import them costs more than to look.
    names = {f"{one.__module__}.{one.__name__}" for one in type(module).__mro__}
    wrapper = "torch.distributed.algorithms._checkpoint.checkpoint_wrapper.CheckpointWrapper"
    if wrapper in names or getattr(module, "gradient_checkpointing", False) is True:
        return True
    return "checkpoint" in (_get_registry(module) or ())
