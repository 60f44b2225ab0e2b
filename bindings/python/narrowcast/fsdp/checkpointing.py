"""Activation checkpointing, as far as it can be seen: a module under it is computed again in the
backward, where FSDP2 gathers for the forward and the backward at once.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from torch import nn

from narrowcast.fsdp import torch_names

_TORCH = "torch.utils.checkpoint"


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


def is_running() -> bool:
    """Whether torch.utils.checkpoint is calling: a model that calls it itself, in its forward,
    says so to nobody. FSDP2's hooks run within the call if it is of the module that is sharded.
    """
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == _TORCH:
            return True
        frame = frame.f_back
    return False


def _is_checkpointed(module: nn.Module) -> bool:
    # By the names of classes: to import them costs more than to look.
    names = {f"{one.__module__}.{one.__name__}" for one in type(module).__mro__}
    wrapper = "torch.distributed.algorithms._checkpoint.checkpoint_wrapper.CheckpointWrapper"
    if wrapper in names or getattr(module, "gradient_checkpointing", False) is True:
        return True
    return "checkpoint" in torch_names.composables_of(module)
