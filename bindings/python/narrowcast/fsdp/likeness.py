"""What the gathers of all ranks must have alike: compared at the first gather of a module tree, and
again for a group that has got other weights.
"""

from __future__ import annotations

import weakref

from narrowcast import consensus
from narrowcast.fsdp import torch_names

# By group: the lines that all ranks are known to have.
_agreed: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def check(state) -> None:
    """Collective, unless all is known already. DisagreementError on every rank if ranks have other
    weights, formats, options or ways of resharding in the groups of a state's module tree.
    """
    new = {}
    for number, one in enumerate(torch_names.states_of_tree(state)):
        lines = _lines(one, number)
        if _agreed.get(torch_names.group_of(one)) != lines:
            new[one] = lines
    if all(not lines for lines in new.values()):
        return
    by_process_group: dict = {}
    for one, lines in new.items():
        for parameter, store in torch_names.quantized(torch_names.group_of(one)):
            process_group = torch_names.process_group(parameter)
            if process_group is not None and torch_names.world(parameter) > 1:
                every, _ = by_process_group.setdefault(process_group, ([], store.bytes.device))
                every += lines
                break
    for process_group, (lines, device) in by_process_group.items():
        consensus.check("the quantized weights of an FSDP2 model", lines, process_group, device)
    for one, lines in new.items():
        _agreed[torch_names.group_of(one)] = lines


def _lines(state, number: int) -> list[str]:
    """Of a group, by its number in the tree: one a quantized weight, in the order of payloads."""
    kept = "kept" if torch_names.is_kept(state) else "resharded"
    return [
        f"{store.label.name or 'a weight without a name'}, "
        f"{'x'.join(map(str, torch_names.whole_shape(parameter)))} in {store.format.identity}, "
        f"recompute={store.label.recompute}, in group {number}, {kept} after the forward"
        for parameter, store in torch_names.quantized(torch_names.group_of(state))
    ]
