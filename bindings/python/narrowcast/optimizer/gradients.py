"""Gradients before a step lie over the ranks as their parameters do; and gradients are off for a
call, and as before however it ends.
"""

import functools

import torch
from torch.distributed.tensor import DTensor

from narrowcast.fsdp import torch_names


def without_gradients(function):
    """As torch.no_grad() does it; but that is code of Python's, and where the handler of a signal
    raises in its midst, gradients stay off. Here functions of C's switch them, and no handler runs
    between the last instruction of `function` and the second of them.
    """

    @functools.wraps(function)
    def call(*args, **kwargs):
        before = torch.is_grad_enabled()
        try:
            torch._C._set_grad_enabled(False)
            return function(*args, **kwargs)
        finally:
            torch._C._set_grad_enabled(before)

    return call


def of_other_ways(parameters: list[torch.Tensor]) -> list[torch.Tensor]:
    """Those whose gradients may lie over the ranks in other ways than they do: tensor parallelism
    may leave each rank with a summand, or the whole. fully_shard's lie as its shards, but where
    ranks have the whole.
    """
    distributed = [one for one in parameters if isinstance(one, DTensor)]
    managed = torch_names.all_managed() if distributed else {}
    return [one for one in distributed if one not in managed or _is_whole_on_ranks(one)]


def _is_whole_on_ranks(parameter: DTensor) -> bool:
    mesh, placements = parameter.device_mesh, parameter.placements
    return any(one.is_replicate() and mesh.size(at) > 1 for at, one in enumerate(placements))


def put_in_place(parameters: list[torch.Tensor]) -> None:
    """Makes gradients lie as their parameters do; collective if they are summands."""
    for parameter in parameters:
        gradient = parameter.grad
        if isinstance(gradient, DTensor) and gradient.placements != parameter.placements:
            parameter.grad = gradient.redistribute(placements=parameter.placements)
