"""Weights that tensor or expert parallelism cuts: where a cut may be, how a converted module takes
a DTensor of a part (parallelize_module and distribute_module register one), casts of parts that
have been written to, in formats whose scale spans the tensor.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterator

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from narrowcast import _C
from narrowcast.fsdp import sharding, stale, torch_names
from narrowcast.master import MasterWeight
from narrowcast.parallel import experts, tensor_parallel
from narrowcast.ranks import debugging
from narrowcast.registry import Format
from narrowcast.tensor import QuantizedTensor, compiling, distributed_parts, dtensors


def check_placements(weight: DTensor, name: str, format: Format, modules: list[nn.Module]) -> None:
    """NotImplementedError unless a DTensor that fully_shard does not manage is the weight of linear
    layers alone, and lies over a mesh of one dimension, whole or cut into rows or columns; or is a
    stack of experts, each of whose dimensions one of a mesh cuts at most. ValueError if a cut would
    divide a block.
    """
    is_stack = weight.dim() == 3 and not any(map(experts.is_of_one_matrix, modules))
    forwards = nn.Linear.forward, tensor_parallel.TensorParallel.forward
    linear = all(isinstance(one, nn.Linear) and type(one).forward in forwards for one in modules)
    is_matrix = linear and weight.dim() == 2 and weight.device_mesh.ndim == 1
    cuts = [one for one in weight.placements if not one.is_replicate()]
    known = all(one.is_shard() for one in cuts) and len({one.dim for one in cuts}) == len(cuts)
    if not known or not (is_stack or is_matrix):
        types = ", ".join(type(one).__name__ for one in modules)
        raise NotImplementedError(
            f"{name} ({types}) is a DTensor of {weight.dim()} dimensions with placements "
            f"{weight.placements}: besides fully_shard's own, one Shard(0), Shard(1) or "
            "Replicate() over a mesh of one dimension is supported of nn.Linear with torch's own "
            "forward (parallelize_module with ColwiseParallel or RowwiseParallel), and of experts "
            "one Shard of each dimension. Leave it out with nc.convert's filter"
        )
    for index, placement in enumerate(weight.placements):
        if placement.is_shard():
            ranks = weight.device_mesh.size(index)
            distributed_parts.check_parts(name, format, tuple(weight.shape), ranks, placement.dim)


def splitting_bytes(function):
    """Shard's method with which distribute_tensor cuts a tensor, of frozen weights, too."""

    @functools.wraps(function)
    def split_tensor(self, tensor, num_chunks, **options):
        if not isinstance(tensor, QuantizedTensor):
            return function(self, tensor, num_chunks, **options)
        parts = distributed_parts.cut(tensor, num_chunks, self.dim)
        return [one.clone() for one in parts], [0] * num_chunks

    return split_tensor


class Registration:
    """The register_parameter of one module of a converted model, in the place of its class's. torch
    calls it whenever a parameter is set; so the module takes a DTensor of a quantized part, as
    nc.convert takes one. Copies and pickles of the module have one of their own, those of the whole
    model with a reference to the copy.
    """

    def __init__(self, module: nn.Module, model: nn.Module | None):
        self._module = weakref.ref(module)
        self._model = (lambda: None) if model is None else weakref.ref(model)

    def __call__(self, name: str, param: torch.Tensor | None) -> None:
        module = self._module()
        _C.note_change()  # another tensor than before has the weight's name
        _take_part(module, name, param, self._model() or module)
        type(module).register_parameter(module, name, param)

    def __deepcopy__(self, memo):
        module = self._module()
        return Registration(memo.get(id(module), module), memo.get(id(self._model())))

    def __reduce__(self):
        return Registration, (self._module(), None)


def _take_part(
    module: nn.Module, name: str, parameter: torch.Tensor | None, model: nn.Module
) -> None:
    """Does what nc.convert does for DTensors, errors included, if it is one of a quantized part."""
    local = dtensors.local_of(parameter)
    if local is parameter or not isinstance(local, (QuantizedTensor, MasterWeight)):
        return
    # A load that assigns puts a DTensor in the place of one; and fully_shard sees to its own.
    before = module._parameters.get(name)
    is_in_place = isinstance(before, DTensor)
    if is_in_place or sharding.is_cutting or torch_names.managed(parameter)[1] is not None:
        return
    is_cut = dtensors.is_cut(parameter)
    if isinstance(before, MasterWeight) and isinstance(local, MasterWeight):
        local.config = before.config  # of which this may be a copy
    check_placements(parameter, local.config.name or name, local.format, [module])
    if isinstance(local, QuantizedTensor):
        local._store.partial = is_cut
    else:
        local.become_part(is_cut)
        if local.config.scale_group is None:  # else forwards cast what shares a scale together
            stale.cast(stale.shards_of([(parameter, local._store)]))
    if isinstance(module, nn.Linear):
        tensor_parallel.adopt(module)
    watch_writes(model, parameter)


# ---- parts that are written to ----


def watch_writes(model: nn.Module, parameter: DTensor) -> None:
    """Has forwards of a model see to what will have been written to a part, if a scale spans the
    ranks: those of its children, if it has no forward itself (a ModuleList).
    """
    if not (dtensors.is_cut(parameter) and dtensors.local_of(parameter)._store.needs_others):
        return
    has_forward = type(model).forward is not nn.Module.forward
    for place in [model] if has_forward else model.children():
        if not any(isinstance(one, CastWritten) for one in place._forward_pre_hooks.values()):
            place.register_forward_pre_hook(CastWritten())
    _C.note_change()


class CastWritten:
    """A hook before the forward of a module: casts the parts within it that were written to, with
    one reduction. No rank's part is empty, so each rank sees what was written; where nothing has
    changed since the last forward, it costs a look at counts. Shards of fully_shard are left to its
    gathers.
    """

    def __init__(self):
        self._watch: _C.Watch | None = None

    def __call__(self, module: nn.Module, arguments) -> None:
        if self._watch is None or not self._watch.is_quiet or debugging.is_on:
            found = dict(_parts_of(module))
            self._watch = _C.Watch([local._store for local in found.values()])
            debugging.compare("the weights of a forward", lambda: _facts_of_parts(found))
            weights = ((parameter, local._store) for parameter, local in found.items())
            stale.cast(stale.shards_of(weights))

    def __reduce__(self):
        return CastWritten, ()


compiling.leave_alone(CastWritten.__call__)


def _parts_of(module: nn.Module) -> Iterator[tuple[DTensor, QuantizedTensor | MasterWeight]]:
    """The cut parameters within a module whose scale spans ranks, each with this rank's part."""
    for parameter in module.parameters():
        local = dtensors.local_of(parameter)
        is_quantized = isinstance(local, (QuantizedTensor, MasterWeight))
        if not is_quantized or local._store.master is None:
            continue
        needs_others = dtensors.is_cut(parameter) and local._store.needs_others
        if needs_others and torch_names.managed(parameter)[1] is None:
            yield parameter, local


def _facts_of_parts(found: dict[DTensor, QuantizedTensor | MasterWeight]) -> list:
    """What the debug mode compares before a forward: which parts were written to."""
    return [
        dtensors.fact(one, local.describe() + ", written to" * local._store.is_stale)
        for one, local in found.items()
    ]
