"""Parts that have been written to, of weights that tensor or expert parallelism cuts in a format
whose scale spans the tensor. What is under fully_shard is left to its gathers.
"""

from __future__ import annotations

import copy
import weakref
from typing import NamedTuple

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from narrowcast import _C
from narrowcast.flat import stale
from narrowcast.ranks import debugging
from narrowcast.tensor import QuantizedTensor, compiling, dtensors

_MODEL = "_narrowcast_model"  # of a module: the model that nc.convert was given


def remember(model: nn.Module, modules: list[nn.Module]) -> None:
    """Has the forward of a model see to parts that these modules of it may be given later."""
    for module in modules:
        module.__dict__[_MODEL] = _Model(model)


def watch(module: nn.Module, name: str, parameter: DTensor) -> None:
    """Has forwards see to what will have been written to a part that a module has or is to get, if
    a scale spans the ranks: that of the model which was converted, once for all its parts; and the
    module's own, where that is called by itself.
    """
    if not (dtensors.is_cut(parameter) and dtensors.local_of(parameter)._store.needs_others):
        return
    part = Part(weakref.ref(module), name, parameter.device_mesh.ndim)
    model = module.__dict__.get(_MODEL, _Model(None)).get()
    for kind, place in ((OfModel, model), (OfModule, module)):
        if place is not None:
            hooks = place._forward_pre_hooks.values()
            parts = next((one for one in hooks if type(one) is kind), None)
            if parts is None:
                place.register_forward_pre_hook(parts := kind([]))
            parts.add(part)


class _Model:
    """A reference from a module to its model; in a copy of the model, to that copy."""

    def __init__(self, model: nn.Module | None):
        self.get = (lambda: None) if model is None else weakref.ref(model)

    def __deepcopy__(self, memo):
        return _Model(memo.get(id(self.get())))

    def __reduce__(self):
        return _Model, (None,)


class Part(NamedTuple):
    """A parameter by its place, and the dimensions of the mesh that it was cut over. That of
    fully_shard has one more, and so have its shards.
    """

    module: weakref.ref[nn.Module]
    name: str
    dimensions: int

    @property
    def local(self) -> tuple[DTensor, QuantizedTensor] | None:
        """The parameter and this rank's part, unless fully_shard gathers it, or the module is
        gone.
        """
        parameter = getattr(self.module(), self.name, None)
        local = dtensors.local_of(parameter)
        is_own = isinstance(local, QuantizedTensor) and local._store.master is not None
        if not is_own or not dtensors.is_cut(parameter):
            return None
        return (parameter, local) if parameter.device_mesh.ndim == self.dimensions else None


class _Parts:
    """Some of them, as a hook before a forward: makes the bytes of those that were written to. No
    rank's part is empty, so each rank sees what was written; a forward after no write costs a look
    at counts.
    """

    def __init__(self, places: list[tuple[nn.Module, str, int]]):
        self._parts = [Part(weakref.ref(module), *rest) for module, *rest in places]
        self._watch: _C.Watch | None = None

    def add(self, part: Part) -> None:
        """In the place of an older one of the parameter."""
        self._parts = [one for one in self._parts if one[:2] != part[:2]] + [part]
        self._watch = None

    def make_bytes(self) -> None:
        if self._watch is None or not self._watch.is_quiet or debugging.is_on:
            found = [both for part in self._parts if (both := part.local) is not None]
            stores = [(local._store, dtensors.shard_group(one)) for one, local in found]
            self._watch = _C.Watch([store for store, _ in stores])
            debugging.compare("the weights of a forward", lambda: _facts(found))
            stale.cast(stores)

    def __deepcopy__(self, memo):
        return type(self)(copy.deepcopy(self._places, memo))

    def __reduce__(self):
        return type(self), (self._places,)

    @property
    def _places(self) -> list[tuple[nn.Module, str, int]]:
        every = ((part.module(), *part[1:]) for part in self._parts)
        return [place for place in every if place[0] is not None]


def _facts(found: list[tuple[DTensor, QuantizedTensor]]) -> list:
    """What the debug mode compares before a forward: which parts were written to."""
    return [
        dtensors.fact(one, local.describe() + ", written to" * local._store.is_stale)
        for one, local in found
    ]


class OfModel(_Parts):
    """Of a whole model: with one reduction."""

    def __call__(self, module: nn.Module, arguments) -> None:
        self.make_bytes()


class OfModule(_Parts):
    """Of one module, which may be called by itself. A graph of torch.compile leaves it out: where
    blocks are compiled, the model's own hook has seen to their parts.
    """

    def __call__(self, module: nn.Module, arguments) -> None:
        if not torch.compiler.is_compiling() and not _is_recomputed():
            self.make_bytes()


def _is_recomputed() -> bool:
    """Whether a forward runs within a backward: of checkpointed activations."""
    return torch._C._current_graph_task_id() != -1


for _function in (_Parts.make_bytes, OfModel.__call__):
    compiling.leave_alone(_function)
