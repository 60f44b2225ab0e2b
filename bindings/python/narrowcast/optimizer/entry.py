"""A parameter of an optimizer, as its tables and reductions know it."""

from __future__ import annotations

from typing import NamedTuple

import torch

from narrowcast.tensor import QuantizedTensor, dtensors
from narrowcast.tensor.store import Store


class Entry(NamedTuple):
    """`state`: empty before its first gradient; `group`: the index of its options; `seed`: of its
    stochastic rounding; None: to nearest.
    """

    parameter: torch.Tensor
    state: dict[str, torch.Tensor]
    name: str
    group: int
    seed: int | None

    @property
    def store(self) -> Store | None:
        """Of a quantized one."""
        local = dtensors.local_of(self.parameter)
        return local._store if isinstance(local, QuantizedTensor) else None

    @property
    def line(self) -> str:
        """What the optimizers of all ranks must have alike of it."""
        store = self.store
        stored = "as a plain tensor"
        if store is not None:
            stored = f"in {store.format.identity} for {store.config.matmul} products"
        rounding = "nearest" if self.seed is None else f"stochastic from seed {self.seed}"
        shape = "x".join(map(str, self.parameter.shape))
        kind = str(self.parameter.dtype).removeprefix("torch.")
        return (
            f"{self.name}, {shape} of {kind} {stored}, in option group {self.group}, rounded "
            f"{rounding}"
        )
