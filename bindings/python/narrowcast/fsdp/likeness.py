"""What the gathers of all ranks must have alike: compared at the first gather of a module tree, and
again for a group that has got other weights.
"""

from __future__ import annotations

import weakref
from typing import NamedTuple

from narrowcast import consensus
from narrowcast.fsdp import torch_names


class _Known(NamedTuple):
    """What all ranks are known to have in a group. A rank whose shards have been copied makes its
    plan anew, and it alone; so only other weights are a reason to ask the others again, and it
    goes on with the way of resharding that was compared, whatever has been set since.
    """

    weights: list[str]
    is_kept: bool


_agreed: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()  # by group


def check(state) -> None:
    """Collective, unless all is known already. DisagreementError on every rank if ranks have other
    weights, formats, options or ways of resharding in the groups of a state's module tree.
    """
    new = {}
    for number, one in enumerate(torch_names.states_of_tree(state)):
        known, weights = _agreed.get(torch_names.group_of(one)), _weights(one)
        if known is None or known.weights != weights:
            new[one] = _lines(one, number, weights), weights
    if all(not lines for lines, _ in new.values()):
        return
    compared = []
    for one, (lines, _) in new.items():
        weights = torch_names.quantized(torch_names.group_of(one))
        sharded = (torch_names.sharded(parameter) for parameter, _ in weights)
        compared += zip(sharded, lines, strict=True)
    consensus.check_shards("the quantized weights of an FSDP2 model", compared)
    for one, (_, weights) in new.items():
        _agreed[torch_names.group_of(one)] = _Known(weights, torch_names.is_kept(one))


def is_kept(state) -> bool:
    """Whether the forward's gather may serve the backward too, as all ranks had it when their
    gathers were compared.
    """
    return _agreed[torch_names.group_of(state)].is_kept


def _weights(state) -> list[str]:
    """Of a group: one line a quantized weight, in the order of payloads."""
    return [
        f"{store.label.name or 'a weight without a name'}, "
        f"{'x'.join(map(str, torch_names.sharded(parameter).shape))} in {store.format.identity}, "
        f"recompute={store.label.recompute}"
        for parameter, store in torch_names.quantized(torch_names.group_of(state))
    ]


def _lines(state, number: int, weights: list[str]) -> list[str]:
    """The same with what messages say of the group, by its number in the tree."""
    kept = "kept" if torch_names.is_kept(state) else "resharded"
    return [f"{weight}, in group {number}, {kept} after the forward" for weight in weights]
