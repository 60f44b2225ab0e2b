"""What ranks do in the place of a reduction of their weights: those that make a first call with
some, or whose call has failed. Every call of every rank takes part in one reduction, and all
reductions of a process group are equally long: so whichever lists the others are in, they meet, and
the next calls of all meet as well. Only where nobody is in the reduction of weights they go on to
come together, and hear of each other.
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
    """Before ranks tell each other what they own, in a first call. DisagreementError if others
    call with weights that they have handed in before, or if a rank failed in a call that this one
    has not heard of.
    """
    meeting = lists.meeting_of(group)
    meeting.calls += 1
    if meeting.device is None:
        return
    _hear(lists.plans_of(group), group)
    flag, numbers = _meet(group, dist.get_world_size(group) + dist.get_rank(group) + 1)
    if numbers:
        _note(group, flag, numbers)
        raise DisagreementError(
            f"{WHAT}: this rank hands in weights for the first time, and others do not, or have "
            "failed. No rank has changed its weights. Every rank raises an error: on a GPU when it "
            "calls with the same weights again"
        )


def hear(plan: Plan) -> None:
    """Before a later call. DisagreementError, on all ranks, if one failed in the last."""
    lists.meeting_of(plan.group).calls += 1
    _hear([plan], plan.group)


def refuse(error: BaseException, group: dist.ProcessGroup | None, known: list[Plan]) -> None:
    """In the place of a call whose arguments are wrong. `known`: the plans of their weights; the
    others may be in any that reduces, and if none does, they hear nothing.
    """
    plan = max(known, key=lambda plan: plan.exchange.is_collective, default=None)
    lists.meeting_of(group if plan is None else plan.group).calls += 1
    if plan is None:
        fail(error, group)
    elif plan.exchange.is_collective:
        fail(error, plan.group)


def fail(error: BaseException, group: dist.ProcessGroup | None) -> None:
    """In the place of this call's reduction, on a rank that raises an error: has the others fail,
    be it their first call or a later one.
    """
    if lists.meeting_of(group).device is None:
        tell_failure(error, group, WHAT)  # as far as anybody knows it is the first call
        return
    flag, numbers = _meet(group, dist.get_rank(group) + 1)
    if numbers:
        _note(group, flag, numbers)
    elif flag > dist.get_world_size(group):
        tell_failure(error, group, WHAT)


def _hear(plans: list[Plan], group: dist.ProcessGroup | None) -> None:
    if not (failed := _failures(plans)):
        return
    _failures(lists.plans_of(group))
    # Nobody waits for an answer, for a rank that has failed may have ended.
    _say(group, dist.get_rank(group) + 1, _LEAVING, -_LEAVING)
    raise next(iter(failed.values()))


def _failures(plans: list[Plan]) -> dict[Plan, DisagreementError]:
    """Those that this rank has not heard of. Their plans are dropped."""
    errors = {plan: error_of(plan.hear) for plan in plans}
    failed = {plan: error for plan, error in errors.items() if error is not None}
    lists.drop(failed)
    return failed


def _note(group: dist.ProcessGroup, flag: int, numbers: set[int]) -> None:
    """A flag has met others in the plans of some numbers: they hear of it at once, or, of a GPU, in
    their next call with these weights, as this rank then does. Who leaves has dropped all plans
    that have failed.
    """
    if _LEAVING in numbers:
        _failures(lists.plans_of(group))
    plans = [plan for plan in lists.plans_of(group) if plan.number in numbers]
    lists.drop(plan for plan in plans if not plan.exchange.will_hear(flag))


def _meet(group: dist.ProcessGroup, flag: int) -> tuple[int, set[int]]:
    """The largest flag of the ranks (see Exchange), and the plans that others are in: by the
    largest number and the smallest.
    """
    largest, last, first = _say(group, flag, 0, -_NONE)[:3].tolist()
    return largest, {last, -first} - {0, _NONE}


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
