"""The value that a weight's bytes are made from, and what is known of it."""

from __future__ import annotations

from typing import NamedTuple

import torch

from narrowcast import _C


class Draw(NamedTuple):
    """What the random words of stochastic rounding are a function of: docs/numerics.md, "Stochastic
    rounding". `first`: the index of the matrix's first element in the whole tensor.
    """

    seed: int
    step: int
    first: int

    def moved(self, elements: int) -> Draw:
        """The draw of a matrix that begins so many elements later."""
        return self._replace(first=(self.first + elements) % 2**64)


class Saved(NamedTuple):
    """The bytes to make are those of a saved state: with the rounding that the step before it used
    (None: to nearest), and with the multiplier of its history, to which nothing is added.
    """

    draw: Draw | None

    def moved(self, elements: int) -> Saved:
        return self if self.draw is None else Saved(self.draw.moved(elements))


class Master:
    """value    float32 [rows, columns]: the optimizer's
    stale    it has changed since the bytes were made
    saved    the stale bytes are those of a saved state, not new ones
    version  of a value that others hold: torch's count of the writes to it that are known here
    """

    __slots__ = ("saved", "stale", "value", "version")

    def __init__(self, value: torch.Tensor):
        if value.is_inference():  # torch counts no writes to it
            with torch.inference_mode(False), torch.no_grad():
                value = value.clone()
        self.value, self.stale = value, False
        self.saved: Saved | None = None
        self.version: int | None = None
        _C.note_change()

    def watch(self) -> None:
        """From now on others hold the value, and may write to it."""
        if self.version is None:
            self.version = self.value._version

    def note(self) -> None:
        """All that has been written is known."""
        if self.version is not None:
            self.version = self.value._version

    @property
    def was_written(self) -> bool:
        """By others, since the last note()."""
        return self.version is not None and self.value._version != self.version

    @property
    def is_shared(self) -> bool:
        """Whether other processes see it, in memory of the CPU (share_memory_)."""
        return self.value.is_cpu and self.value.is_shared()

    def settle(self) -> None:
        """The bytes are those of the value."""
        self.stale, self.saved = False, None

    def like(self, value: torch.Tensor) -> Master:
        """The same in other memory."""
        copy = Master(value)
        copy.stale, copy.saved = self.stale, self.saved
        return copy
