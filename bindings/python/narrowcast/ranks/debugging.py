"""A mode in which ranks compare, at every step and forward, what they must have alike: which
weights were written, which have gradients, options, the bytes of what is replicated. A program that
breaks the contract gets an error that names ranks, weights and calls, in the place of wrong numbers
or a wait until the process group's time limit.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable

import torch

from narrowcast.ranks.facts import Fact, same

is_on = os.environ.get("NARROWCAST_DEBUG", "0") not in ("", "0")


def debug(on: bool = True) -> None:
    """Switches the comparison of ranks on or off. Call it on all ranks alike. Ranks are compared at
    the gathers of each forward, each optimizer step and each nc.quantize_master_weights, and all of
    them raise a DisagreementError if they differ. A comparison is a reduction for which the host
    waits. NARROWCAST_DEBUG=1 in the environment switches it on from the start.
    """
    global is_on
    is_on = bool(on)


def compare(what: str, facts: Callable[[], Iterable[Fact]]) -> None:
    """same(), if the mode is on; facts are made only then."""
    if is_on:
        same(f"{what} (debug mode)", facts())


def digest_of(tensors: Iterable[torch.Tensor | None]) -> str:
    """Of the bytes of tensors, equal on all machines; the host waits for a device."""
    words = hashlib.blake2b(digest_size=8)
    for one in tensors:
        if one is not None:
            flat = one.detach().cpu().contiguous().view(-1)
            words.update(flat.view(torch.uint8).numpy().tobytes())
    return words.hexdigest()
