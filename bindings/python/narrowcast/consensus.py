"""What all ranks of a process group must have alike: compared when it is first relied upon. A rank
that alone has another format, order or option would decode the others' bytes wrongly, or wait for
what never comes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from itertools import zip_longest
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import is_fake

from narrowcast.tensor import dtensors


class DisagreementError(RuntimeError):
    """What every rank of a process group raises at the same moment."""


def each(calls: Iterable[Callable[[], object]]) -> None:
    """Calls all of them, though some raise DisagreementError: what one ends, the other ranks end
    too. Raises the first of these errors.
    """
    errors = [error for error in map(error_of, calls) if error is not None]
    if errors:
        raise errors[0]


def error_of(call: Callable[[], object]) -> DisagreementError | None:
    """The error that a call raises, if it is such a one."""
    try:
        call()
    except DisagreementError as error:
        return error
    return None


_DIGEST_BITS = 62  # so that its negative is an int64 too
_SHOWN = 3  # differences in a message


def digest(facts: Iterable[str]) -> int:
    """Of lines in their order; equal on all machines."""
    words = hashlib.blake2b("\n".join(facts).encode(), digest_size=8).digest()
    return int.from_bytes(words, "little") >> (64 - _DIGEST_BITS)


def check(
    what: str, facts: list[str], process_group: dist.ProcessGroup, device: torch.device
) -> None:
    """Compares facts, a line each, over the ranks; collective, and the host waits for it.
    DisagreementError on every rank, with the ranks and the lines that differ, unless all are equal;
    RuntimeError if the group has no backend for the device.
    """
    if error := disagreement(what, facts, process_group, device):
        raise error


def disagreement(what: str, facts: list[str], process_group, device) -> DisagreementError | None:
    """The error of all ranks of a group; None if they have the same facts."""
    _check_backend(process_group, device)
    own = digest(facts)
    both = torch.tensor([own, -own], dtype=torch.int64, device=device)
    dist.all_reduce(both, op=dist.ReduceOp.MAX, group=process_group)
    if is_fake(both) or both.sum().item() == 0:  # the largest is the smallest
        return None
    every: list = [None] * dist.get_world_size(process_group)
    with torch.cuda.device(device if device.type == "cuda" else -1):
        dist.all_gather_object(every, facts, group=process_group)
    ranks = dist.get_process_group_ranks(process_group)
    return DisagreementError(_difference(what, every, ranks))


def _check_backend(process_group: dist.ProcessGroup, device: torch.device) -> None:
    try:
        process_group._get_backend(torch.device(device.type))
    except RuntimeError:
        raise RuntimeError(
            f"the process group has no backend for {device.type} tensors, and shards are there "
            "(CPUOffloadPolicy): what ranks tell each other of them is reduced there. Use "
            'torch.distributed.init_process_group("cpu:gloo,cuda:nccl"), or name no backend'
        ) from None


def lines_by_group(parameters: Iterable[tuple[torch.Tensor, str]]) -> dict[Any, list[str]]:
    """The lines of parameters that are cut over each process group, in their order."""
    lines: dict[Any, list[str]] = {}
    for parameter, line in parameters:
        process_group = dtensors.shard_group(parameter)
        if process_group is not None:
            lines.setdefault(process_group, []).append(line)
    return lines


def check_shards(what: str, parameters: list[tuple[torch.Tensor, str]]) -> None:
    """check() of a line for each parameter, over the ranks that have shards of it. Where there are
    several process groups, as of a mesh, the ranks of all hear of a difference in one.
    """
    devices = {
        dtensors.shard_group(parameter): dtensors.device_of(parameter)
        for parameter, _ in parameters
    }
    lines = lines_by_group(parameters)
    devices = {one: devices[one] for one in sorted(lines, key=_along_mesh)}
    errors = [disagreement(what, lines[one], one, device) for one, device in devices.items()]
    error = next(filter(None, errors), None)
    if len(devices) > 1 and is_on_any(error is not None, devices) and error is None:
        error = DisagreementError(
            f"ranks disagree about {what}, those of another process group of the mesh, which say "
            "in what. Every rank raises this error"
        )
    if error is not None:
        raise error


def is_on_any(flag: bool, groups: dict[dist.ProcessGroup, torch.device]) -> bool:
    """Whether a flag is set on any rank of some process groups, each with the device on which its
    ranks tell each other: once along each dimension of a mesh, it comes to all of it.
    """
    for process_group in sorted(groups, key=_along_mesh):
        every = torch.tensor([flag], dtype=torch.int32, device=groups[process_group])
        dist.all_reduce(every, op=dist.ReduceOp.MAX, group=process_group)
        flag = not is_fake(every) and bool(every.item())
    return flag


def shard_groups(parameters: Iterable[torch.Tensor]) -> dict[dist.ProcessGroup, torch.device]:
    """The process groups over which parameters are cut, each with a device of theirs."""
    pairs = ((dtensors.shard_group(one), one) for one in parameters)
    return {group: dtensors.device_of(one) for group, one in pairs if group is not None}


def _along_mesh(process_group: dist.ProcessGroup) -> tuple[int, int]:
    """In what order ranks of a mesh come to its process groups: by how far ranks lie apart."""
    ranks = dist.get_process_group_ranks(process_group)
    return ranks[-1] - ranks[0], len(ranks)


def _difference(what: str, every: list[list[str]], ranks: list[int]) -> str:
    """The sentence about lines that differ. `every`: those of each rank."""
    differing = [
        (number, said)
        for number, said in enumerate(zip_longest(*every, fillvalue="nothing"))
        if len(set(said)) > 1
    ]
    shown = [f"entry {number}: {_who(said, ranks)}" for number, said in differing[:_SHOWN]]
    more = f"; and {len(differing) - _SHOWN} more" if len(differing) > _SHOWN else ""
    return (
        f"the ranks disagree about {what}: {'; '.join(shown)}{more}. Every rank raises this error. "
        "Make the model, convert and shard it, and make its optimizer in the same way on all ranks"
    )


def _who(said: tuple[str, ...], ranks: list[int]) -> str:
    """Which ranks have which line."""
    by_line: dict[str, list[int]] = {}
    for rank, line in zip(ranks, said, strict=True):
        by_line.setdefault(line, []).append(rank)
    return " but ".join(f"{_named(who)} {line}" for line, who in by_line.items())


def _named(ranks: list[int]) -> str:
    """ "rank 1 has", "ranks 0 to 7 have"."""
    if len(ranks) == 1:
        return f"rank {ranks[0]} has"
    if len(ranks) > 2 and ranks == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]} to {ranks[-1]} have"
    return f"ranks {', '.join(map(str, ranks))} have"
