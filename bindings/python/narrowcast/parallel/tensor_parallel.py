"""Tensor parallelism: parallelize_module cuts the weights of linear layers, before or after
nc.convert makes matrices of them, and here the products of parts are taken.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from narrowcast.master import MasterWeight
from narrowcast.tensor import QuantizedTensor, dtensors


class TensorParallel:
    """What a linear layer with such a weight is besides. torch would take the product apart into
    operators that transpose the weight.
    """

    def forward(self, input: DTensor) -> DTensor:
        if not isinstance(dtensors.local_of(self.weight), (QuantizedTensor, MasterWeight)):
            return super().forward(input)
        if not isinstance(input, DTensor):
            raise TypeError(
                f"{dtensors.local_of(self.weight).describe()}: this weight is cut over ranks, and "
                f"the layer's input is a {type(input).__name__}, not a DTensor. Let "
                "parallelize_module prepare it, or use DTensor.from_local"
            )
        return _linear(input, self.weight, self.bias)


class TensorParallelLinear(TensorParallel, nn.Linear):
    """nn.Linear: a class that can be pickled."""


def adopt(module: nn.Linear) -> None:
    """Makes a layer one whose weight is cut over ranks, as fully_shard makes it an FSDPModule."""
    cls = type(module)
    if not isinstance(module, TensorParallel):
        kind = TensorParallelLinear
        if cls is not nn.Linear:
            kind = type(cls.__name__, (TensorParallel, cls), {})
        module.__class__ = kind


def _linear(input: DTensor, weight: DTensor, bias: DTensor | None) -> DTensor:
    """The product of a rank's part is a part of the product."""
    places = _places(weight.placements[0], input)
    input = input.redistribute(placements=[places.input])
    output = F.linear(
        _Waited.apply(input.to_local(grad_placements=[places.input_gradient])),
        weight.to_local(grad_placements=[places.weight_gradient]),
        None if bias is None else _bias_part(bias, places),
    )
    shape = torch.Size((*input.shape[:-1], weight.shape[0]))
    return DTensor.from_local(
        *(_Waited.apply(output), weight.device_mesh, [places.output]),
        run_check=False,
        shape=shape,
        stride=torch.empty(shape, device="meta").stride(),
    )


class _Places(NamedTuple):
    """How a layer's tensors lie over the ranks."""

    input: Placement
    input_gradient: Placement
    weight_gradient: Placement
    output: Placement


def _places(cut: Placement, input: DTensor) -> _Places:
    """A rank has some columns of the product, where the weight's rows are cut; a summand, where its
    columns are; some rows or all, where it is whole.
    """
    last = input.dim() - 1
    if cut.is_shard(0):
        return _Places(Replicate(), Partial(), cut, Shard(last))
    if cut.is_shard(1):
        return _Places(Shard(last), Shard(last), cut, Partial())
    (place,) = input.placements
    if place.is_partial() or place.is_shard(last):
        place = Replicate()
    return _Places(place, place, Partial() if place.is_shard() else cut, place)


def _bias_part(bias: DTensor, places: _Places) -> torch.Tensor:
    """What a rank adds to its part: of summands the first rank's alone has it."""
    if places.output.is_partial():
        own = bias.to_local(grad_placements=[Replicate()])
        return _OfTheFirst.apply(own, bias.device_mesh.get_local_rank() == 0)
    if places.weight_gradient.is_shard():
        bias = bias.redistribute(placements=[places.weight_gradient])
    return bias.to_local(grad_placements=[places.weight_gradient])


class _OfTheFirst(torch.autograd.Function):
    """Zeros on the other ranks, which see the gradient of the sum all the same."""

    @staticmethod
    def forward(ctx, value, is_first):
        return value.view_as(value) if is_first else torch.zeros_like(value)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class _Waited(torch.autograd.Function):
    """Waits for values, and in the backward for gradients, that a collective is still to bring:
    kernels of ours read memory.
    """

    @staticmethod
    def forward(ctx, value):
        return _waited(value)

    @staticmethod
    def backward(ctx, gradient):
        return _waited(gradient)


def _waited(value: torch.Tensor) -> torch.Tensor:
    return value.wait() if isinstance(value, AsyncCollectiveTensor) else value.view_as(value)
