"""Gradients before a step: those of whole parameters are whole. Gradients off for a call, and as
before however it ends.
"""

import functools

import torch
from torch.distributed.tensor import DTensor


def without_gradients(function):
    """As torch.no_grad() does it; but that is code of Python's, and where the handler of a signal
    raises in its midst, gradients stay off. Here functions of C's switch them, and no handler runs
    between the last instruction of `function` and the second of them.
    """

    @functools.wraps(function)
    def call(*args):
        before = torch.is_grad_enabled()
        try:
            torch._C._set_grad_enabled(False)
            return function(*args)
        finally:
            torch._C._set_grad_enabled(before)

    return call


def is_whole_on_ranks(parameter: torch.Tensor) -> bool:
    """Whether each of several ranks has the whole parameter, as a DTensor: then tensor parallelism
    may leave each with a summand of the gradient.
    """
    if not isinstance(parameter, DTensor):
        return False
    mesh, placements = parameter.device_mesh, parameter.placements
    return any(one.is_replicate() and mesh.size(at) > 1 for at, one in enumerate(placements))


def add_up(parameters: list[torch.Tensor]) -> None:
    """Makes gradients whole of which each rank has a summand; collective if there are some."""
    for parameter in parameters:
        gradient = parameter.grad
        if isinstance(gradient, DTensor) and any(one.is_partial() for one in gradient.placements):
            parameter.grad = gradient.redistribute(placements=parameter.placements)
