"""The process group of shards, and what its ranks tell each other when one fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch.distributed as dist

from narrowcast.consensus import DisagreementError
from narrowcast.zero import ranges


def group_or_all(group: dist.ProcessGroup | None) -> dist.ProcessGroup | None:
    """The group; all ranks if it is None, this process alone where there are no others. ValueError
    on a rank that is no member.
    """
    if group is not None and not isinstance(group, dist.ProcessGroup):
        raise ValueError(f"this rank is no member of the process group: {group!r} stands for it")
    if group is None and dist.is_available() and dist.is_initialized():
        return dist.group.WORLD
    return group


def tell_failure(error: Exception, group: dist.ProcessGroup | None, what: str) -> None:
    """In the place of ranges.agree, on a rank whose arguments are wrong: has the others fail."""
    if group is not None:
        with suppress(DisagreementError):  # for the others; here the error itself is raised
            ranges.agree(None, f"{type(error).__name__}: {error}.", group, None, what)


@contextmanager
def together(
    group: dist.ProcessGroup | None,
    what: str,
    consequence: str = "what this rank has loaded stays",
) -> Iterator[None]:
    """What all ranks of a group do alike, before something collective: where it fails on one, which
    raises its own error, all others raise a DisagreementError in the place of going on.
    """
    error = None
    try:
        yield
    except Exception as own:
        error = own
        raise
    finally:
        failed = _failures(error, group)
        if failed and error is None:
            rank, said = failed[0]
            raise DisagreementError(
                f"{what} failed on rank {rank} of the group: {said}. Every rank raises an error; "
                f"{consequence}"
            )


def _failures(error: Exception | None, group: dist.ProcessGroup | None) -> list[tuple[int, str]]:
    """The ranks that have failed, each with what it says."""
    said = None if error is None else f"{type(error).__name__}: {error}"
    every = [said]
    if group is not None:
        every = [None] * dist.get_world_size(group)
        dist.all_gather_object(every, said, group=group)
    return [(rank, one) for rank, one in enumerate(every) if one is not None]
