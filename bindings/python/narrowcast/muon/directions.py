"""From gradients to the directions in which a step moves matrices."""

from __future__ import annotations

from collections import defaultdict

import torch

from narrowcast.muon import momentum
from narrowcast.muon.exchange import Exchange
from narrowcast.muon.matrices import Matrix
from narrowcast.tensor import dtensors


class Directions:
    """Of some matrices that have gradients. Whole ones are orthogonalized here, and of those that
    ranks have cut each by one rank.
    """

    def __init__(self, matrices: list[Matrix]):
        self._whole = [one for one in matrices if not one.is_cut]
        cut: dict[tuple, list[Matrix]] = defaultdict(list)
        for one in matrices:
            if one.is_cut:
                parameter = one.entry.parameter
                cut[dtensors.shard_group(parameter), _device_of(parameter)].append(one)
        self._cut = [(each, Exchange(*key, each)) for key, each in cut.items()]

    def compute(self, grad_scale: float) -> dict[torch.Tensor, tuple[torch.Tensor, float]]:
        """Of each parameter: bfloat16, of its local shape, contiguous; and the learning rate's
        factor. Collective where matrices are cut.
        """
        found = {}
        for one in self._whole:
            local = dtensors.local_of(one.entry.parameter)
            ahead = torch.empty(local.shape, dtype=torch.bfloat16, device=local.device)
            momentum.advance([one], [ahead], grad_scale)
            found[one.entry.parameter] = one.orthogonalize(ahead), one.factor
        for matrices, exchange in self._cut:

            def fill(tasks, out, matrices=matrices):
                _advance([matrices[task] for task in tasks], out, grad_scale)

            for one, made in zip(matrices, exchange.run(fill), strict=True):
                local = dtensors.local_of(one.entry.parameter)
                found[one.entry.parameter] = made.to(local.device), one.factor
        return found


def _advance(matrices: list[Matrix], out: list[torch.Tensor], grad_scale: float) -> None:
    """momentum.advance() of matrices in several option groups."""
    places: dict[int, list[int]] = defaultdict(list)
    for place, one in enumerate(matrices):
        places[one.entry.group].append(place)
    for some in places.values():
        every = ([each[place] for place in some] for each in (matrices, out))
        momentum.advance(*every, grad_scale)


def _device_of(parameter: torch.Tensor) -> torch.device:
    """Where ranks exchange parts of it, also where those are offloaded to the CPU."""
    kind = parameter.device_mesh.device_type
    return torch.device(kind, torch.cuda.current_device()) if kind == "cuda" else torch.device(kind)
