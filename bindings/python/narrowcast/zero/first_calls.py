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

from narrowcast.tensor import casting
from narrowcast.zero.groups import tell_failure
from narrowcast.zero.plan import Plan


class _Last(NamedTuple):
    """Of a process group the weights that it cast last for the first time. They may be gone, and
    with them the plan, but not on all ranks at the same moment: `integers` and `device` of the
    reduction stay.
    """

    plan: weakref.ref[Plan]
    integers: int
    device: torch.device


_numbers: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()  # of each process group
_last: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()  # of each process group


def next_number(group: dist.ProcessGroup | None) -> int:
    """Of a plan that all ranks are about to make: the same on all."""
    if group is None:
        return 1
    _numbers[group] = number = _numbers.get(group, 0) + 1
    return number


def remember(plan: Plan) -> None:
    """All ranks have come to a first call."""
    exchange = plan.exchange
    if exchange.is_collective:
        _last[exchange.group] = _Last(weakref.ref(plan), len(exchange.memory), exchange.device)


def plan_of(group: dist.ProcessGroup | None) -> Plan | None:
    """In whose reduction ranks meet, if it is there."""
    return _last[group].plan() if group in _last else None


def come(group: dist.ProcessGroup | None) -> None:
    """Before ranks tell each other what they own. DisagreementError, on all that come, if a rank
    failed in a call that nobody has heard of.
    """
    if (plan := plan_of(group)) is not None:
        plan.hear()
    if group in _last:
        _meet(group, dist.get_world_size(group) + dist.get_rank(group) + 1)


def refuse(error: Exception, group: dist.ProcessGroup | None, what: str) -> None:
    """In the place of all that, on a rank whose arguments are wrong and that has no plan_of(): has
    the others fail, be it their first call or a later one.
    """
    if group in _last:
        said = _meet(group, dist.get_rank(group) + 1)
        if said <= dist.get_world_size(group):  # nobody makes a first call
            return
    tell_failure(error, group, what)


def _meet(group: dist.ProcessGroup, flag: int) -> int:
    """The largest flag of the ranks: see Exchange."""
    _, integers, device = _last[group]
    memory = torch.zeros(integers, dtype=torch.int32, device=device)
    memory[0] = flag
    casting.reduce_over(memory, group)
    return int(memory[0])
