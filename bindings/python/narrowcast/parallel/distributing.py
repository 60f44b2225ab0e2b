"""Weights that tensor or expert parallelism cuts: where a cut may be, how a converted module takes
a DTensor of a part (parallelize_module and distribute_module register one), and what full_tensor()
gives of it.
"""

import functools
import weakref

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from narrowcast.fsdp import torch_names
from narrowcast.operators.common import value_of
from narrowcast.parallel import experts, tensor_parallel, written
from narrowcast.registry import Format
from narrowcast.tensor import QuantizedTensor, distributed_parts, dtensors


def check_placements(weight: DTensor, name: str, format: Format, modules: list[nn.Module]) -> None:
    """NotImplementedError unless a DTensor that fully_shard does not manage is the weight of linear
    layers alone, and lies over a mesh of one dimension, whole or cut into rows or columns; or is a
    stack of experts, each of whose dimensions one of a mesh cuts at most. ValueError if a cut would
    divide a block.
    """
    is_stack = weight.dim() == 3 and not any(map(experts.is_of_one_matrix, modules))
    if not is_stack:
        _check_linear(weight, name, modules)
    cuts = [one for one in weight.placements if not one.is_replicate()]
    known = all(one.is_shard() for one in cuts) and len({one.dim for one in cuts}) == len(cuts)
    if not known or not (is_stack or (weight.dim() == 2 and weight.device_mesh.ndim == 1)):
        raise NotImplementedError(
            f"{name} is a DTensor of {weight.dim()} dimensions with placements "
            f"{weight.placements}: besides fully_shard's own, one Shard(0), Shard(1) or "
            "Replicate() over a mesh of one dimension is supported (parallelize_module with "
            "ColwiseParallel or RowwiseParallel), and of experts one Shard of each dimension. "
            "Leave it out with nc.convert's filter"
        )
    for index, placement in enumerate(weight.placements):
        if placement.is_shard():
            ranks = weight.device_mesh.size(index)
            distributed_parts.check_cut(name, format, tuple(weight.shape), ranks, placement.dim)


def _check_linear(weight: DTensor, name: str, modules: list[nn.Module]) -> None:
    for module in modules:
        is_known = type(module).forward in (
            nn.Linear.forward,
            tensor_parallel.TensorParallel.forward,
        )
        if not (isinstance(module, nn.Linear) and is_known):
            raise NotImplementedError(
                f"{name} is a DTensor (tensor parallelism), and the forward of its "
                f"{type(module).__name__} is not that of nn.Linear, whose product alone is known. "
                "Use nn.Linear, or leave it out with nc.convert's filter"
            )


class Registration:
    """The register_parameter of one converted module, in the place of its class's. torch calls it
    whenever a parameter is set. Deep copies and pickles of the module have one of their own; a
    shallow copy (copy.copy) has the module's, as it has its dict of parameters.
    """

    def __init__(self, module: nn.Module):
        self._module = weakref.ref(module)

    def __call__(self, name: str, param: torch.Tensor | None) -> None:
        module = self._module()
        _take_part(module, name, param)
        type(module).register_parameter(module, name, param)

    def __reduce__(self):
        return Registration, (self._module(),)


def watch_registrations(module: nn.Module) -> None:
    """Has a converted module take a DTensor of a quantized part, as nc.convert takes one."""
    module.__dict__["register_parameter"] = Registration(module)


def _take_part(module: nn.Module, name: str, parameter: torch.Tensor | None) -> None:
    """Does what nc.convert does for DTensors, if a parameter is one of a quantized part.
    NotImplementedError or ValueError as there.
    """
    local = dtensors.local_of(parameter)
    if local is parameter or not isinstance(local, QuantizedTensor):
        return
    # A load that assigns puts a DTensor in the place of one; and fully_shard sees to its own.
    is_in_place = isinstance(module._parameters.get(name), DTensor)
    if is_in_place or torch_names.is_sharding() or torch_names.managed(parameter)[1] is not None:
        return
    local.detach_from_base()  # of what the part was filled up with
    store = local._store
    check_placements(parameter, store.config.name or name, store.format, [module])
    store.partial = dtensors.is_cut(parameter)
    if isinstance(module, nn.Linear):
        tensor_parallel.adopt(module)
    written.watch(module, parameter)


class _Value(torch.autograd.Function):
    """Of a whole weight, the master, or the decoded value where none is kept. A gradient of it is
    one of the weight.
    """

    @staticmethod
    def forward(ctx, weight: QuantizedTensor) -> torch.Tensor:
        # Not the master itself: a write to a full tensor changes no parameter.
        return value_of(weight).to(weight.dtype, copy=True)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


def full_tensor_of_masters(function):
    """torch's full_tensor(), whose result is a plain tensor on any number of ranks."""

    @functools.wraps(function)
    def full_tensor(self, **options):
        whole = function(self, **options)
        is_cut = any(placement.is_shard() for placement in self.placements)
        return _Value.apply(whole) if is_cut and isinstance(whole, QuantizedTensor) else whole

    return full_tensor
