"""The first call with some weights in a process group where calls with others reduce already. A
rank that makes it alone, or cannot say which weights it means, meets the others in the reduction of
the last call's weights, instead of waiting for what never comes; then all come together, and hear
of it.
"""

from __future__ import annotations

import weakref
from typing import NamedTuple

import torch
import torch.distributed as dist

from narrowcast.consensus import DisagreementError
from narrowcast.tensor import casting
from narrowcast.zero.exchange import Longest
from narrowcast.zero.groups import tell_failure
from narrowcast.zero.plan import Plan


class _Last(NamedTuple):
    """Of a process group the weights that it cast last for the first time. They may be gone, and
    with them the plan, but not on all ranks at the same moment: `device` of the reduction stays.
    """

    plan: weakref.ref[Plan]
    device: torch.device


_NO_NUMBER = 2**31 - 1  # larger than any
# Of each process group.
_numbers: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
_longest: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
_last: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def next_of(group: dist.ProcessGroup | None) -> tuple[int, Longest]:
    """The number of a plan that all ranks are about to make, the same on all, and what it has in
    common with the others of the group.
    """
    if group is None:
        return 1, Longest()
    _numbers[group] = number = _numbers.get(group, 0) + 1
    return number, _longest.setdefault(group, Longest())


def remember(plan: Plan) -> None:
    """All ranks have come to a first call. From now on the group's reductions are as long as this
    one's, for ranks that call with others meet in any of them.
    """
    exchange = plan.exchange
    if exchange.is_collective:
        plan.longest.integers = max(plan.longest.integers, len(exchange.memory))
        _last[exchange.group] = _Last(weakref.ref(plan), exchange.device)


def plan_of(group: dist.ProcessGroup | None) -> Plan | None:
    """In whose reduction ranks meet, if it is there."""
    return _last[group].plan() if group in _last else None


def come(group: dist.ProcessGroup | None) -> set[int]:
    """Before ranks tell each other what they own. Returns the numbers of the plans in whose
    reductions other ranks are, which drop them. DisagreementError, on all that come, if a rank
    failed in a call that nobody has heard of.
    """
    if (plan := plan_of(group)) is not None:
        plan.hear()
    if group not in _last:
        return set()
    return _meet(group, dist.get_world_size(group) + dist.get_rank(group) + 1)[1]


def refuse(error: Exception, group: dist.ProcessGroup | None, what: str) -> tuple[int, set[int]]:
    """In the place of all that, on a rank whose arguments are wrong and that has no plan of them:
    has the others fail, be it their first call or a later one. Returns the flag that they hear, and
    the numbers of the plans that they are in.
    """
    flag, met = 0, set()
    if (plan := plan_of(group)) is not None:
        try:
            plan.hear()
        except DisagreementError:  # of an earlier failure, which the others hear of now: they do
            return flag, {plan.number}  # not come to a reduction
    if group in _last:
        flag, met = _meet(group, dist.get_rank(group) + 1)
        if flag <= dist.get_world_size(group):  # nobody makes a first call
            return flag, met
    tell_failure(error, group, what)  # where all hear of it
    return 0, met


def _meet(group: dist.ProcessGroup, flag: int) -> tuple[int, set[int]]:
    """The largest flag of the ranks (see Exchange), and the plans that they are in: by the largest
    number and the smallest, of all that is not 0.
    """
    device = _last[group].device
    memory = torch.zeros(_longest[group].integers, dtype=torch.int32, device=device)
    said = torch.tensor([flag, 0, -_NO_NUMBER], dtype=torch.int32)
    memory[: len(said)] = said.to(device)
    casting.reduce_over(memory, group)
    largest, last, first = memory[: len(said)].tolist()
    return largest, {last, -first} - {0, _NO_NUMBER}
