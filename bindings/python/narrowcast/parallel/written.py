"""Parts that have been written to, of weights that tensor or expert parallelism cuts in a format
whose scale spans the tensor.
"""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from narrowcast.fsdp import agreement
from narrowcast.tensor import QuantizedTensor, compiling, dtensors


class Part(NamedTuple):
    """A parameter by its place, and the dimensions of the mesh that it was cut over. That of
    fully_shard has one more, and so have its shards.
    """

    module: nn.Module
    name: str
    dimensions: int

    @property
    def local(self) -> tuple[DTensor, QuantizedTensor] | None:
        """The parameter and this rank's part, unless that is fully_shard's affair."""
        parameter = getattr(self.module, self.name)
        local = dtensors.local_of(parameter)
        is_own = isinstance(local, QuantizedTensor) and local._store.master is not None
        if not is_own or not dtensors.is_cut(parameter):
            return None
        return (parameter, local) if parameter.device_mesh.ndim == self.dimensions else None


def watch(model: nn.Module, places: list[tuple[nn.Module, str]]) -> None:
    """Has the forward of a model see to what has been written to those of some parameters whose
    scale spans the ranks.
    """
    parts = []
    for module, name in places:
        parameter = getattr(module, name)
        if isinstance(parameter, DTensor) and dtensors.is_cut(parameter):
            part = Part(module, name, parameter.device_mesh.ndim)
            if part.local is not None and _spans(parameter):
                parts.append(part)
    if parts:
        model.register_forward_pre_hook(WrittenParts(parts))


def watch_part(module: nn.Module, name: str, parameter: DTensor) -> None:
    """The same of the forward of the one module that is to get a parameter."""
    if _spans(parameter):
        part = Part(module, name, parameter.device_mesh.ndim)
        module.register_forward_pre_hook(WrittenParts([part]))


def _spans(parameter: torch.Tensor) -> bool:
    """Whether a scale spans more than a rank's part."""
    return dtensors.local_of(parameter)._store.needs_others


class WrittenParts:
    """Before a forward of a model: makes the bytes of the parts that any rank has written to. Those
    under fully_shard are left to its gathers.
    """

    def __init__(self, parts: list[Part]):
        self._parts, self._agreements = parts, agreement.Agreements()

    def __call__(self, module: nn.Module, arguments) -> None:
        found = [both for part in self._parts if (both := part.local) is not None]
        if found:
            self._agreements.make_bytes(
                [local._store for _, local in found],
                lambda: [dtensors.shard_group(parameter) for parameter, _ in found],
            )

    def __deepcopy__(self, memo):
        return WrittenParts(copy.deepcopy(self._parts, memo))

    def __reduce__(self):
        return WrittenParts, (self._parts,)


compiling.leave_alone(WrittenParts.__call__)
