"""What the gathers of all ranks must have alike: compared at the first gather of a module tree, and
again for a group that has got other weights.
"""

from __future__ import annotations

import weakref
from typing import NamedTuple

from narrowcast import consensus
from narrowcast.fsdp import checkpointing, torch_names


class _Known(NamedTuple):
    """What all ranks are known to have in a group. A rank whose shards have been copied makes its
    plan anew, and it alone; so only other weights are a reason to ask the others again, and it
    goes on with what was compared, whatever has been set since: the way of resharding, and whether
    the forward is computed again.
    """

    weights: list[str]
    is_kept: bool
    recomputed: bool | None  # None: nothing was seen yet, and the first gather may see more


_agreed: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()  # by group


def check(group) -> None:
    """Collective, unless all is known of the group already. DisagreementError on every rank if
    ranks have other weights, formats, options or ways of resharding in the groups of its module
    tree, of those that are not known.
    """
    if _has_known(group, _weights(group)):
        return  # this rank may be here alone, and the others compare nothing, whatever else is new
    new = {}
    for number, one in enumerate(torch_names.groups_of_tree(group)):
        weights = _weights(one)
        if not _has_known(one, weights):
            new[one] = number, _Known(weights, torch_names.is_kept(one), None)
    if all(not known.weights for _, known in new.values()):
        return
    checkpointed = checkpointing.modules_under(torch_names.root_modules(group))
    compared = []
    for one, (number, known) in new.items():
        seen = _is_under(one, checkpointed) or None
        new[one] = number, known._replace(recomputed=seen)
        compared += _of_shards(one, _lines(number, new[one][1]))
    consensus.check_shards("the quantized weights of an FSDP2 model", compared)
    for one, (_, known) in new.items():
        _agreed[one] = known


def _has_known(group, weights: list[str]) -> bool:
    """Whether these weights of a group are known to be those of all ranks."""
    known = _agreed.get(group)
    return known is not None and known.weights == weights


def serves_both(group, store) -> bool:
    """Whether every gather of a weight shall serve both passes, as all ranks had it when their
    gathers were compared. Collective at a group's first gather, if that may tell what its modules
    did not: DisagreementError on every rank if ranks differ.
    """
    known, asked = _agreed[group], store.label.recompute
    if known.is_kept or asked is not None:
        return known.is_kept or asked
    if known.recomputed is None and not store.format.columnwise_derived:
        by_hand = torch_names.is_asked_for(group)  # which does not say what it is for
        seen = "by unshard()" if by_hand else checkpointing.caller()
        how = seen or "outside of a checkpoint"
        lines = [f"{weight}, first gathered {how}" for weight in known.weights]
        consensus.check_shards("activation checkpointing", _of_shards(group, lines))
        known = _agreed[group] = known._replace(recomputed=seen is not None)
    return bool(known.recomputed)


def is_recomputed(group, store) -> bool:
    """Whether gathers of a weight serve both passes, as far as it is known by now."""
    known = _agreed.get(group)
    if store.label.recompute is not None:
        return store.label.recompute
    if known is not None:
        return bool(known.recomputed)
    return _is_under(group, checkpointing.modules_under(torch_names.root_modules(group)))


def _is_under(group, checkpointed: set) -> bool:
    """Whether a quantized weight of a group belongs to one of these modules."""
    weights = torch_names.quantized(group)
    every = (module for parameter, _ in weights for module in torch_names.modules_of(parameter))
    return any(module in checkpointed for module in every)


def _of_shards(group, lines: list[str]) -> list[tuple]:
    """The shards of a group, each with its line."""
    weights = torch_names.quantized(group)
    return [
        (torch_names.sharded(parameter), line)
        for (parameter, _), line in zip(weights, lines, strict=True)
    ]


def _weights(group) -> list[str]:
    """One line a quantized weight, in the order of payloads."""
    return [
        f"{store.label.name or 'a weight without a name'}, "
        f"{'x'.join(map(str, torch_names.sharded(parameter).shape))} in {store.format.identity}, "
        f"cut along dimension {torch_names.cut_dimension(parameter)}, "
        f"recompute={'auto' if store.label.recompute is None else store.label.recompute}"
        for parameter, store in torch_names.quantized(group)
    ]


def _lines(number: int, known: _Known) -> list[str]:
    """The same with what messages say of the group, by its number in the tree."""
    kept = "kept" if known.is_kept else "resharded"
    again = ", computed again in the backward" if known.recomputed else ""
    return [
        f"{weight}, in group {number}, {kept} after the forward{again}" for weight in known.weights
    ]
