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
    """What every rank of a process group raises if their facts differ."""


# A line, with the process group over which it must be alike and a device of that; None: nothing.
Fact = tuple[dist.ProcessGroup | None, torch.device, str]

_DIGEST_BITS = 62  # so that its negative is an int64 too
_SHOWN = 3  # differences in a message


def same(what: str, facts: Iterable[Fact]) -> None:
    """Compares lines over the ranks of their process groups: a digest of each group's lines in one
    reduction; the lines themselves are exchanged if it differs. Collective, and the host waits.

    DisagreementError on every rank, also of other process groups of the mesh, unless all are equal.
    RuntimeError if a group has no backend for the device.
    """
    lines: dict[Any, list[str]] = {}
    devices: dict[dist.ProcessGroup, torch.device] = {}
    for group, device, line in facts:
        if group is not None:
            lines.setdefault(group, []).append(line)
            devices[group] = device
    ordered = sorted(lines, key=_along_mesh)
    errors = [_difference(what, lines[one], one, devices[one]) for one in ordered]
    error = next(filter(None, errors), None)
    if len(devices) > 1 and is_on_any(error is not None, devices) and error is None:
        error = DisagreementError(
            f"the ranks disagree about {what} in another process group of the mesh, whose ranks "
            "say in what. Every rank raises this error"
        )
    if error is not None:
        raise error


def is_on_any(flag: bool, groups: dict[dist.ProcessGroup, torch.device]) -> bool:
    """Whether a flag is set on any rank of some process groups, each with a device of its ranks:
    reduced along one dimension of a mesh after another. Collective, and the host waits.
    """
    for group in sorted(groups, key=_along_mesh):
        every = torch.tensor([flag], dtype=torch.int32, device=groups[group])
        dist.all_reduce(every, op=dist.ReduceOp.MAX, group=group)
        flag = not is_fake(every) and bool(every.item())
    return flag


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


def _difference(what: str, facts: list[str], group, device) -> DisagreementError | None:
    """The error of all ranks of a group; None if they have the same lines."""
    _check_backend(group, device)
    own = _digest(facts)
    both = torch.tensor([own, -own], dtype=torch.int64, device=device)
    dist.all_reduce(both, op=dist.ReduceOp.MAX, group=group)
    if is_fake(both) or both.sum().item() == 0:  # the largest is the smallest
        return None
    every = gather_objects(facts, group, device)
    return DisagreementError(_sentence(what, every, dist.get_process_group_ranks(group)))


def _digest(facts: Iterable[str]) -> int:
    """Of lines in their order; equal on all machines."""
    words = hashlib.blake2b("\n".join(facts).encode(), digest_size=8).digest()
    return int.from_bytes(words, "little") >> (64 - _DIGEST_BITS)


def _check_backend(group: dist.ProcessGroup, device: torch.device) -> None:
    try:
        group._get_backend(torch.device(device.type))
    except RuntimeError:
        raise RuntimeError(
            f"the process group has no backend for {device.type} tensors, and shards are there "
            "(CPUOffloadPolicy), where what ranks must have alike is reduced. Use "
            'torch.distributed.init_process_group("cpu:gloo,cuda:nccl"), or name no backend'
        ) from None


def _along_mesh(group: dist.ProcessGroup) -> tuple[int, int]:
    """The order of the process groups of a mesh: by how far their ranks lie apart."""
    ranks = dist.get_process_group_ranks(group)
    return ranks[-1] - ranks[0], len(ranks)


def _sentence(what: str, every: list[list[str]], ranks: list[int]) -> str:
    """About lines that differ. `every`: the lines of each rank."""
    differing = [
        (number, lines)
        for number, lines in enumerate(zip_longest(*every, fillvalue="nothing"))
        if len(set(lines)) > 1
    ]
    shown = [f"entry {number}: {_who(lines, ranks)}" for number, lines in differing[:_SHOWN]]
    more = f"; and {len(differing) - _SHOWN} more" if len(differing) > _SHOWN else ""
    return (
        f"the ranks disagree about {what}: {'; '.join(shown)}{more}. Every rank raises this error. "
        "Make the model, convert and shard it, and make its optimizer in the same way on all ranks"
    )


def _who(lines: tuple[str, ...], ranks: list[int]) -> str:
    """Which ranks have which line."""
    by_line: dict[str, list[int]] = {}
    for rank, line in zip(ranks, lines, strict=True):
        by_line.setdefault(line, []).append(rank)
    return " but ".join(f"{_named(who)} {line}" for line, who in by_line.items())


def _named(ranks: list[int]) -> str:
    """ "rank 1 has", "ranks 0 to 7 have"."""
    if len(ranks) == 1:
        return f"rank {ranks[0]} has"
    if len(ranks) > 2 and ranks == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]} to {ranks[-1]} have"
    return f"ranks {', '.join(map(str, ranks))} have"
