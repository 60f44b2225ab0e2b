"""The process group of shards, and what its ranks tell each other when one fails."""

from __future__ import annotations

from contextlib import suppress

import torch.distributed as dist

from narrowcast.consensus import DisagreementError
from narrowcast.zero import ranges


def group_or_all(group: dist.ProcessGroup | None) -> dist.ProcessGroup | None:
    """The group; all ranks if it is None, this process alone where there are no others."""
    if group is None and dist.is_available() and dist.is_initialized():
        return dist.group.WORLD
    return group


def tell_failure(error: Exception, group: dist.ProcessGroup | None, what: str) -> None:
    """In the place of ranges.agree, on a rank whose arguments are wrong: has the others fail."""
    if group is not None:
        with suppress(DisagreementError):  # for the others; here the error itself is raised
            ranges.agree(None, f"{type(error).__name__}: {error}.", group, None, what)
