"""What ranks do in the place of a reduction of their weights: those that make a first call with
some, or whose call has failed. Every call of every rank takes part in one reduction, and all
reductions of a process group are equally long, so whichever lists the others are in, they meet.
After that all ranks that make a first call, or fail beside one that does, come together, and hear
of each other there.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from narrowcast.consensus import DisagreementError, error_of
from narrowcast.tensor import casting
from narrowcast.zero import lists
from narrowcast.zero.groups import tell_failure
from narrowcast.zero.plan import WHAT

_NO_NUMBER = 2**31 - 1  # larger than any


def come(group: dist.ProcessGroup | None) -> None:
    """Before ranks tell each other what they own, in a first call. DisagreementError, on all that
    come, if a rank failed in a call that nobody has heard of.
    """
    if lists.meeting_of(group).device is None:
        return
    if errors := _hear_all(group):
        fail(errors[0], group)
        raise errors[0]
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    _, numbers = _meet_until_all_come(group, ranks + rank + 1)
    _drop_met(group, numbers)


def fail(error: BaseException, group: dist.ProcessGroup | None) -> None:
    """In the place of this call's reduction, on a rank that raises an error: has the others fail,
    be it their first call or a later one.
    """
    if lists.meeting_of(group).device is None:
        tell_failure(error, group, WHAT)  # others can only be in their first call
        return
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    flag, numbers = _meet_until_all_come(group, rank + 1)
    if flag > ranks:
        _drop_met(group, numbers)
        tell_failure(error, group, WHAT)
    elif numbers:  # of a GPU they hear of it in their next call with these weights, as this rank
        plans = [plan for plan in lists.plans_of(group) if plan.number in numbers]
        lists.drop(plan for plan in plans if not plan.exchange.will_hear(flag))
    else:  # all raise an error now, most of them because they have heard of an earlier one
        _hear_all(group)


def _hear_all(group: dist.ProcessGroup) -> list[DisagreementError]:
    """The failures that this rank has not heard of. Their plans are dropped."""
    errors = {plan: error_of(plan.hear) for plan in lists.plans_of(group)}
    lists.drop(plan for plan, error in errors.items() if error is not None)
    return [error for error in errors.values() if error is not None]


def _meet_until_all_come(group: dist.ProcessGroup, flag: int) -> tuple[int, set[int]]:
    """Meets the others, once if nobody makes a first call; else until nobody is in the reduction of
    weights, because those of a GPU hear of it in a later one. Returns the largest flag (see
    Exchange), and the numbers of the plans that others were in.
    """
    numbers: set[int] = set()
    while True:
        largest, now = _meet(group, flag)
        numbers |= now
        if largest <= dist.get_world_size(group) or not now:
            return largest, numbers


def _drop_met(group: dist.ProcessGroup, numbers: set[int]) -> None:
    """Those of these numbers, in which others met a first call, and those in whose last reduction
    this rank did.
    """
    plans = lists.plans_of(group)
    lists.drop(one for one in plans if one.exchange.hears_first_call() or one.number in numbers)


def _meet(group: dist.ProcessGroup, flag: int) -> tuple[int, set[int]]:
    """The largest flag of the ranks, and the plans that they are in: by the largest number and the
    smallest, of all that is not 0.
    """
    meeting = lists.meeting_of(group)
    memory = torch.zeros(meeting.longest.integers, dtype=torch.int32, device=meeting.device)
    said = torch.tensor([flag, 0, -_NO_NUMBER], dtype=torch.int32, device="cpu")
    memory[: len(said)] = said.to(meeting.device)
    casting.reduce_over(memory, group)
    largest, last, first = memory[: len(said)].tolist()
    return largest, {last, -first} - {0, _NO_NUMBER}
