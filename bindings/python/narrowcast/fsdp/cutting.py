"""What fully_shard and distribute_tensor are cutting: they do it with torch.chunk, as users do, and
pass nothing else on. conversion/torch_hooks.py replaces the functions of torch that are running
then.
"""

import functools
from typing import NamedTuple

import torch


class Cut(NamedTuple):
    """parameter    the FSDPParam of fully_shard; None of distribute_tensor
    weight       the tensor that is cut: a DTensor, if it is a part of tensor parallelism
    is_measured  for shapes alone, of what stays after the forward
    """

    parameter: object
    weight: torch.Tensor
    is_measured: bool

    @property
    def own_rank(self) -> int:
        """Which of the shards of fully_shard is this rank's."""
        return self.parameter.mesh_info.shard_mesh_rank


_now: Cut | None = None


def now() -> Cut | None:
    """The innermost cut; None where torch cuts nothing."""
    return _now


def by_fully_shard(function, is_measured: bool = False):
    """A method of FSDPParam, which is noted while it runs."""
    return _noted(function, lambda parameter, weight: Cut(parameter, weight, is_measured))


def by_distribute_tensor(function):
    """Shard's method that cuts, likewise."""
    return _noted(function, lambda placement, weight: Cut(None, weight, False))


def _noted(function, cut):
    @functools.wraps(function)
    def run(self, weight, *args, **kwargs):
        global _now
        before, _now = _now, cut(self, weight)
        try:
            return function(self, weight, *args, **kwargs)
        finally:
            _now = before

    return run
