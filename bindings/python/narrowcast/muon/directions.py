"""From gradients to the directions in which a step moves matrices."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch

from narrowcast.muon.exchange import Exchange
from narrowcast.muon.matrices import Matrix
from narrowcast.tensor import dtensors

_BATCH = 1 << 26  # elements: 256 MiB of temporary float32


class Directions:
    """Of some matrices that have gradients. Whole ones are orthogonalized here, and of those that
    ranks have cut each by one rank.
    """

    def __init__(self, matrices: list[Matrix]):
        self.matrices = matrices
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
        for some in _batches(self._whole):
            ahead = [_empty(one.entry.parameter) for one in some]
            advance(some, ahead, grad_scale)
            for one, whole in zip(some, ahead, strict=True):
                found[one.entry.parameter] = one.orthogonalize(whole).to(one.device), one.factor
        for matrices, exchange in self._cut:

            def fill(tasks, out, matrices=matrices):
                advance([matrices[task] for task in tasks], out, grad_scale)

            for one, made in zip(matrices, exchange.run(fill), strict=True):
                found[one.entry.parameter] = made, one.factor
        return found


def advance(matrices: Sequence[Matrix], out: Sequence[torch.Tensor], grad_scale: float) -> None:
    """Moves momenta of matrices on one device by their gradients, which are divided by
    `grad_scale`, and writes the matrices to be orthogonalized to `out`: bfloat16, of the shapes of
    local parts. Arithmetic is torch.optim.Muon's, in float32.
    """
    of_groups: dict[int, list[tuple[Matrix, torch.Tensor]]] = defaultdict(list)
    for pair in zip(matrices, out, strict=True):
        of_groups[pair[0].entry.group].append(pair)
    for pairs in of_groups.values():
        some, ahead = (list(each) for each in zip(*pairs, strict=True))
        options = some[0].group
        momenta = [dtensors.local_of(one.entry.state["momentum_buffer"]) for one in some]
        means = [torch.empty_like(one, dtype=torch.float32) for one in momenta]
        torch._foreach_copy_(means, [dtensors.local_of(one.entry.parameter.grad) for one in some])
        if grad_scale != 1:
            torch._foreach_mul_(means, 1 / grad_scale)
        wide = [one.to(torch.float32) for one in momenta]  # float32 ones are the momenta themselves
        torch._foreach_lerp_(wide, means, 1 - options["momentum"])
        if momenta[0].dtype != torch.float32:
            torch._foreach_copy_(momenta, wide)
        if options["nesterov"]:
            torch._foreach_lerp_(means, wide, options["momentum"])
        torch._foreach_copy_(ahead, means if options["nesterov"] else wide)


def _batches(matrices: list[Matrix]) -> list[list[Matrix]]:
    """Whole matrices whose momenta move together: on one device, and few enough for memory."""
    made, elements = [], 0
    for one in matrices:
        elements += one.entry.parameter.numel()
        if not made or made[-1][0].device != one.device or elements > _BATCH:
            made.append([])
            elements = one.entry.parameter.numel()
        made[-1].append(one)
    return made


def _empty(parameter: torch.Tensor) -> torch.Tensor:
    """Bfloat16, of a parameter's local shape, where it is orthogonalized."""
    shape = dtensors.local_of(parameter).shape
    return torch.empty(shape, dtype=torch.bfloat16, device=_device_of(parameter))


def _device_of(parameter: torch.Tensor) -> torch.device:
    """Where ranks compute with it, also where it is offloaded to the CPU."""
    is_distributed = isinstance(parameter, dtensors.DTensor)
    return torch.device(parameter.device_mesh.device_type) if is_distributed else parameter.device
