"""The facts that all ranks must have alike for their gathers to fit. Ranks compare them once, at
the first gather of a module tree.
"""

from __future__ import annotations

import weakref
from typing import NamedTuple

from narrowcast import ranks
from narrowcast.fsdp import recomputation, torch_names
from narrowcast.tensor import dtensors


class _Known(NamedTuple):
    """What is fixed with a group's first gather: whether its weights are kept after the forward,
    and whether the forward is computed again in the backward; None while nothing of that was seen.
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
    new = [
        (number, one)
        for number, one in enumerate(torch_names.groups_of_tree(group))
        if one not in _known and torch_names.quantized(one)
    ]
    checkpointed = recomputation.modules_under(torch_names.root_modules(group))
    facts = []
    for number, one in new:
        _known[one] = _Known(torch_names.is_kept(one), _is_under(one, checkpointed) or None)
        facts += _facts(one, number)
    ranks.same("the quantized weights of an FSDP2 model", facts)


def serves_both(group, store) -> bool:
    """Whether every gather of a weight serves both passes. A group's first gather may show what its
    modules did not: that it is within a checkpoint, or by unshard(), which does not say what for.
    """
    known, asked = _known[group], store.config.recompute
    if known.is_kept or asked is not None:
        return known.is_kept or asked
    if known.recomputed is None and not store.format.columnwise_derived:
        seen = torch_names.is_asked_for(group) or recomputation.is_calling()
        known = _known[group] = known._replace(recomputed=seen)
    return bool(known.recomputed)


def is_recomputed(group, store) -> bool:
    """Whether gathers of a weight serve both passes, as far as it is known by now."""
    known = _known.get(group)
    if store.config.recompute is not None:
        return store.config.recompute
    if known is not None:
        return bool(known.recomputed)
    return _is_under(group, recomputation.modules_under(torch_names.root_modules(group)))


def _is_under(group, checkpointed: set) -> bool:
    """Whether a quantized weight of a group belongs to one of these modules."""
    weights = torch_names.quantized(group)
    every = (module for parameter, _ in weights for module in torch_names.modules_of(parameter))
    return any(module in checkpointed for module in every)


def _facts(group, number: int) -> list[ranks.Fact]:
    """Of each quantized weight, in the order of payloads. `number`: of the group in its tree."""
    known = _known[group]
    kept = "kept" if known.is_kept else "resharded"
    again = ", computed again in the backward" if known.recomputed else ""
    return [
        dtensors.fact(
            torch_names.sharded(parameter),
            f"{store.config.name or 'a weight without a name'}, "
            f"{'x'.join(map(str, torch_names.sharded(parameter).shape))} in "
            f"{store.format.identity}, cut along dimension "
            f"{torch_names.cut_dimension(parameter)}, recompute="
            f"{'auto' if store.config.recompute is None else store.config.recompute}, in group "
            f"{number}, {kept} after the forward{again}",
        )
        for parameter, store in torch_names.quantized(group)
    ]
