"""What the first gather of a group fixes, and all ranks must have alike for gathers to fit:
weights, formats, and which passes a gather serves. Ranks compare it once, at the first gather of a
module tree.

One gather may have to serve a forward and a backward. Activation checkpointing: a module under it
is computed again in the backward. Pipelines: their schedules keep what a backward has gathered, and
the next forward reads it.
"""

from __future__ import annotations

import weakref
from typing import NamedTuple

from torch import nn
from torch.distributed._composable.contract import _get_registry

from narrowcast import ranks, stack_frames
from narrowcast.fsdp import sharding, torch_names
from narrowcast.tensor import dtensors


class _Known(NamedTuple):
    """Of a group: whether its weights are kept after the forward, and whether the forward is
    computed again in the backward; None while nothing of that was seen.
    """

    is_kept: bool
    recomputed: bool | None


_known: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()  # by group


def check(group) -> None:
    """Before the gathers of a group are laid out. Collective at the first gather of a module tree,
    or of a group that has joined it: DisagreementError on every rank if ranks have other weights,
    formats, options or ways of resharding.
    """
    if group in _known:
        return  # a rank whose shards were copied is here alone
    facts, checkpointed = [], _checkpointed(group)
    for number, one in enumerate(torch_names.groups_of_tree(group)):
        if one not in _known and sharding.quantized(one):
            _known[one] = _Known(torch_names.is_kept(one), _has_any(one, checkpointed) or None)
            facts += _facts_of_weights(one, number)
    ranks.same("the quantized weights of an FSDP2 model", facts)


def _facts_of_weights(group, number: int) -> list[ranks.Fact]:
    """Of each quantized weight, in the order of payloads. `number`: of the group in its tree."""
    known = _known[group]
    kept = "kept" if known.is_kept else "resharded"
    again = ", computed again in the backward" if known.recomputed else ""
    facts = []
    for parameter, store in sharding.quantized(group):
        sharded, asked = torch_names.sharded(parameter), store.config.recompute
        line = (
            f"{store.config.name or 'a weight without a name'}, {tuple(sharded.shape)} in "
            f"{store.format.identity}, cut along dimension {torch_names.cut_dimension(parameter)}, "
            f"recompute={'auto' if asked is None else asked}, in group {number}, {kept} after the "
            f"forward{again}"
        )
        facts.append(dtensors.fact(sharded, line))
    return facts


def both(group, store) -> bool:
    """Whether every gather of a weight serves both passes. A group's first gather may show what its
    modules did not: that it is within a checkpoint, or by unshard(), which does not say what for.
    """
    known, asked = _known[group], store.config.recompute
    if known.is_kept or asked is not None:
        return known.is_kept or asked
    if known.recomputed is None and not store.format.columnwise_derived:
        # FSDP2's hooks run within a checkpoint that is of the module that is sharded.
        seen = torch_names.is_asked_for(group) or stack_frames.is_repeated()
        known = _known[group] = known._replace(recomputed=seen)
    return bool(known.recomputed)


def is_recomputed(group, store) -> bool:
    """Whether gathers of a weight serve both passes, as far as it is known by now."""
    if store.config.recompute is not None:
        return store.config.recompute
    if group in _known:
        return bool(_known[group].recomputed)
    return _has_any(group, _checkpointed(group))


def _has_any(group, modules: set[nn.Module]) -> bool:
    """Whether a quantized weight of a group belongs to one of these modules."""
    weights = sharding.quantized(group)
    return any(not modules.isdisjoint(torch_names.modules_of(one)) for one, _ in weights)


def _checkpointed(group) -> set[nn.Module]:
    """The modules of a group's tree that are under activation checkpointing: in torch's
    checkpoint_wrapper, given to its composable checkpoint, or below one whose
    `gradient_checkpointing` is set, as Hugging Face does it.
    """
    found: set[nn.Module] = set()
    for module in torch_names.modules_of_tree(group):
        if module not in found and _checkpoints(module):
            found.update(module.modules())
    return found


def _checkpoints(module: nn.Module) -> bool:
    # By the names of classes: to import them costs more than to look.
    names = {f"{one.__module__}.{one.__name__}" for one in type(module).__mro__}
    wrapper = "torch.distributed.algorithms._checkpoint.checkpoint_wrapper.CheckpointWrapper"
    if wrapper in names or getattr(module, "gradient_checkpointing", False) is True:
        return True
    return "checkpoint" in (_get_registry(module) or ())
