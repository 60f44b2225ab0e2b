"""DTensor.full_tensor() of shards on a mesh of one rank. Over more ranks it gathers, by operators
that give masters (operators/arithmetic.py); over one it hands out the shard as it is.
"""

import functools

import torch

from narrowcast.operators.common import value_of
from narrowcast.tensor import QuantizedTensor


class _Value(torch.autograd.Function):
    """Of a whole weight, the master, or the decoded value where none is kept. A gradient of it is
    one of the weight.
    """

    @staticmethod
    def forward(ctx, weight: QuantizedTensor) -> torch.Tensor:
        # Not the master itself, which nobody expects to write to.
        return value_of(weight).to(weight.dtype, copy=True)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


def of_masters(function):
    """torch's full_tensor(), whose result is a plain tensor on any number of ranks."""

    @functools.wraps(function)
    def full_tensor(self, **options):
        whole = function(self, **options)
        is_cut = any(placement.is_shard() for placement in self.placements)
        return _Value.apply(whole) if is_cut and isinstance(whole, QuantizedTensor) else whole

    return full_tensor
