"""Options of nc.convert."""

from __future__ import annotations

from typing import NamedTuple

from torch import nn


class Options(NamedTuple):
    """`recompute`: None for "auto"."""

    recompute: bool | None
    matmul: str
    trainable: bool | None

    def keeps_master(self, weight: nn.Parameter) -> bool:
        return weight.requires_grad if self.trainable is None else self.trainable

    @staticmethod
    def checked(recompute, matmul: str, trainable) -> Options:
        """As a caller gives them. ValueError for one that makes no sense."""
        if recompute not in (True, False, "auto"):
            raise ValueError(f'recompute is True, False or "auto", not {recompute!r}')
        if trainable not in (True, False, None):
            raise ValueError(f"trainable is True, False or None, not {trainable!r}")
        recompute = None if recompute == "auto" else bool(recompute)
        return Options(recompute, matmul, None if trainable is None else bool(trainable))
