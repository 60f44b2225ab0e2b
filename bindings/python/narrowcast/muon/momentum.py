"""Momenta."""

from collections.abc import Sequence

import torch

from narrowcast.muon.matrices import Matrix
from narrowcast.tensor import dtensors


def advance(matrices: Sequence[Matrix], out: Sequence[torch.Tensor], grad_scale: float) -> None:
    """Moves the momenta of matrices of one option group on one device by their gradients, which
    are divided by `grad_scale`, and writes what is to be orthogonalized to `out`: bfloat16, of the
    shapes of local parts. Arithmetic is torch.optim.Muon's, in float32.
    """
    group = matrices[0].group
    parameters = [one.entry.parameter for one in matrices]
    momenta = [dtensors.local_of(one.entry.state["momentum_buffer"]) for one in matrices]
    means = [torch.empty_like(one, dtype=torch.float32) for one in momenta]
    torch._foreach_copy_(means, [dtensors.local_of(one.grad) for one in parameters])
    if grad_scale != 1:
        torch._foreach_mul_(means, 1 / grad_scale)
    wide = [one.to(torch.float32) for one in momenta]  # the momenta themselves if they are float32
    torch._foreach_lerp_(wide, means, 1 - group["momentum"])
    if momenta[0].dtype != torch.float32:
        torch._foreach_copy_(momenta, wide)
    if group["nesterov"]:
        torch._foreach_lerp_(means, wide, group["momentum"])
    torch._foreach_copy_([*out], means if group["nesterov"] else wide)
