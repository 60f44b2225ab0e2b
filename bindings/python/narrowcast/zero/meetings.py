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
from narrowcast.zero.plan import WHAT, Plan

# In the place of a plan's number: of who is in no plan's reduction, and of who goes on without
# having heard what the others say.
_NONE, _LEAVING = 2**31 - 1, 2**31 - 2


def come(group: dist.ProcessGroup | None) -> None:
    """Before ranks tell each other what they own, in a first call. DisagreementError, on all that
    come, if a rank failed in a call that nobody has heard of.
    """
    if lists.meeting_of(group).device is None:
        return
    _hear(lists.plans_of(group), group)
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    _, numbers = _meet_until_all_come(group, ranks + rank + 1)
    _drop_met(group, numbers)


def hear(plan: Plan) -> None:
    """Before a later call. DisagreementError, on all ranks, if one failed in the last."""
    _hear([plan], plan.group)


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
    elif numbers - {_LEAVING}:  # of a GPU they hear of it in their next call of these, as this rank
        plans = [plan for plan in lists.plans_of(group) if plan.number in numbers]
        lists.drop(plan for plan in plans if not plan.exchange.will_hear(flag))
    else:  # all raise an error now, most of them because they have heard of an earlier one
        _failures(lists.plans_of(group))


def _hear(plans: list[Plan], group: dist.ProcessGroup | None) -> None:
    if not (failed := _failures(plans)):
        return
    error = next(iter(failed.values()))
    failed |= _failures(lists.plans_of(group))
    if any(plan.exchange.met_first_call for plan in failed):
        fail(error, group)
    else:  # nobody waits for a rank that may have ended with its error
        _say(group, dist.get_rank(group) + 1, _LEAVING, -_LEAVING)
    raise error


def _failures(plans: list[Plan]) -> dict[Plan, DisagreementError]:
    """Those that this rank has not heard of. Their plans are dropped."""
    errors = {plan: error_of(plan.hear) for plan in plans}
    failed = {plan: error for plan, error in errors.items() if error is not None}
    lists.drop(failed)
    return failed


def _meet_until_all_come(group: dist.ProcessGroup, flag: int) -> tuple[int, set[int]]:
    """Meets the others, once if nobody makes a first call; else until all do so that come to it,
    for those of a GPU hear of it in a later call. Returns the largest flag (see Exchange), and the
    numbers of the plans that others were in.
    """
    numbers: set[int] = set()
    while True:
        largest, last, first = _say(group, flag, 0, -_NONE)[:3].tolist()
        now = {last, -first} - {0, _NONE}
        numbers |= now
        if largest <= dist.get_world_size(group) or not now:
            return largest, numbers


def _say(group: dist.ProcessGroup, *said: int) -> torch.Tensor:
    """A reduction in the place of a plan's: of a flag, of the largest number of a plan, and of the
    smallest, negative. Returns all that is reduced, int32.
    """
    meeting = lists.meeting_of(group)
    memory = torch.zeros(meeting.longest.integers, dtype=torch.int32, device=meeting.device)
    own = torch.tensor(said, dtype=torch.int32, device="cpu")
    memory[: len(said)] = own.to(meeting.device)
    casting.reduce_over(memory, group)
    return memory


def _drop_met(group: dist.ProcessGroup, numbers: set[int]) -> None:
    """Those of these numbers, in which others met a first call, and those in whose last reduction
    this rank did.
    """
    plans = lists.plans_of(group)
    lists.drop(one for one in plans if one.exchange.hears_first_call() or one.number in numbers)
