"""The lists of weights that are handed in together, each with its plan."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from narrowcast.tensor import QuantizedTensor
from narrowcast.zero.exchange import Longest
from narrowcast.zero.plan import Plan

_plans: WeakKeyDictionary = WeakKeyDictionary()  # of each weight's store
_meetings: WeakKeyDictionary = WeakKeyDictionary()  # of each process group


class Meeting:
    """Where the ranks of a process group can meet that hand in different lists. `count`: of the
    lists that all have handed in; `longest`: of their reductions; `device`: theirs, None while no
    list reduces; `calls`: of this rank; `misses_calls`: some list reduces nothing.
    """

    def __init__(self):
        self.count, self.longest, self.calls, self.misses_calls = 0, Longest(), 0, False
        self.device: torch.device | None = None


def meeting_of(group: dist.ProcessGroup | None) -> Meeting:
    return Meeting() if group is None else _meetings.setdefault(group, Meeting())


def plan_of(weight) -> Plan | None:
    """That of the list with a weight, whatever it is."""
    return _plans.get(weight._store) if isinstance(weight, QuantizedTensor) else None


def plans_of(group: dist.ProcessGroup | None) -> list[Plan]:
    """Of the lists of a process group whose weights this rank still has."""
    return [plan for plan in dict.fromkeys(_plans.values()) if plan.group is group]


def keep(weights: Sequence[torch.Tensor], plan: Plan) -> Plan:
    """The plan of weights. From now on the group's reductions are as long as this one's."""
    for weight in weights:
        _plans[weight._store] = plan
    meeting = meeting_of(plan.group)
    meeting.misses_calls |= not plan.exchange.is_collective
    if plan.exchange.is_collective:
        meeting.device = plan.exchange.device
        meeting.longest.integers = max(meeting.longest.integers, len(plan.exchange.memory))
    return plan


def drop(plans: Iterable[Plan]) -> None:
    """The next call with their weights is a first one."""
    gone = set(plans)
    for store in [store for store, plan in _plans.items() if plan in gone]:
        del _plans[store]
