"""Facts that all ranks of a process group must have alike, compared when they are first relied
upon: a rank with another format, order or option would decode the others' bytes wrongly.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from itertools import zip_longest
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import is_fake


class DisagreementError(RuntimeError):
    """Raised by every rank of a group if facts differ. It names two ranks and their facts."""


# A line, with the process group over which it must be alike and a device of that; None: nothing.
Fact = tuple[dist.ProcessGroup | None, torch.device, str]


def same(what: str, facts: Iterable[Fact]) -> None:
    """Compares lines over the ranks of their process groups: a digest of each group's lines in one
    reduction; the lines themselves are exchanged if it differs. Collective, and the host waits.
    DisagreementError on every rank of a group whose lines differ.
    """
    lines: dict[dist.ProcessGroup, tuple[torch.device, list[str]]] = {}
    for group, device, line in facts:
        if group is not None:
            lines.setdefault(group, (device, []))[1].append(line)
    for group, (device, own) in lines.items():
        _compare(what, own, group, device)


def largest(number: torch.Tensor, groups: dict[dist.ProcessGroup, torch.device]) -> torch.Tensor:
    """The largest number of any rank. `number`: this rank's, a tensor of one element; `groups`:
    process groups, each with a device of its ranks, reduced over one after another. Collective.
    """
    for group, device in groups.items():
        number = number.to(device, copy=True)
        dist.all_reduce(number, op=dist.ReduceOp.MAX, group=group)
    return number


def gather_objects(own: Any, group: dist.ProcessGroup | None, device: torch.device) -> list:
    """A picklable object of each rank of a group, by rank; without a group this rank's alone.
    Collective, and the host waits.
    """
    if group is None:
        return [own]
    every = [None] * dist.get_world_size(group)
    with torch.cuda.device(device if device.type == "cuda" else -1):
        dist.all_gather_object(every, own, group=group)
    return every


def _compare(what: str, own: list[str], group: dist.ProcessGroup, device: torch.device) -> None:
    digest = hashlib.blake2b("\n".join(own).encode(), digest_size=7).digest()
    number = int.from_bytes(digest, "little")  # its negative is an int64, too
    both = torch.tensor([number, -number], dtype=torch.int64, device=device)
    dist.all_reduce(both, op=dist.ReduceOp.MAX, group=group)
    if is_fake(both) or both.sum().item() == 0:  # the largest is the smallest
        return
    every = gather_objects(own, group, device)
    raise DisagreementError(_sentence(what, every, dist.get_process_group_ranks(group)))


def _sentence(what: str, every: list[list[str]], ranks: list[int]) -> str:
    """About the first lines that differ. `every`: the lines of each rank."""
    place, lines = next(
        (place, lines)
        for place, lines in enumerate(zip_longest(*every, fillvalue="nothing"))
        if len(set(lines)) > 1
    )
    other = next(line for line in lines if line != lines[0])
    count = lines.count(lines[0])
    return (
        f"the ranks disagree about {what}: entry {place}: rank {ranks[0]} has {lines[0]} but rank "
        f"{ranks[lines.index(other)]} has {other} ({count} of {len(lines)} ranks have the former). "
        "Every rank raises this error. Make the model, convert and shard it, and make its "
        "optimizer in the same way on all ranks"
    )
