"""Parts that have been written to, of weights that tensor or expert parallelism cuts in a format
whose scale spans the tensor.
"""

from __future__ import annotations

import copy
import weakref
from typing import NamedTuple

from torch import nn
from torch.distributed.tensor import DTensor

from narrowcast.fsdp import agreement
from narrowcast.tensor import QuantizedTensor, compiling, dtensors


class Part(NamedTuple):
    """A parameter by its place, and the dimensions of the mesh that it was cut over. That of
    fully_shard has one more, and so have its shards.
    """

    module: weakref.ref[nn.Module]
    name: str
    dimensions: int

    @property
    def local(self) -> tuple[DTensor, QuantizedTensor] | None:
        """The parameter and this rank's part, unless that is fully_shard's affair, or the module is
        no more.
        """
        parameter = getattr(self.module(), self.name, None)
        local = dtensors.local_of(parameter)
        is_own = isinstance(local, QuantizedTensor) and local._store.master is not None
        if not is_own or not dtensors.is_cut(parameter):
            return None
        return (parameter, local) if parameter.device_mesh.ndim == self.dimensions else None


class _Model:
    """The model that nc.convert was given, as a module of it knows it, and a copy with the copy."""

    def __init__(self, model: nn.Module | None):
        self.get = (lambda: None) if model is None else weakref.ref(model)

    def __deepcopy__(self, memo):
        return _Model(memo.get(id(self.get())))

    def __reduce__(self):
        return _Model, (None,)


_NOT_CONVERTED = _Model(None)
_ATTRIBUTE = "_narrowcast_model"


def remember(model: nn.Module, modules: list[nn.Module]) -> None:
    """Has the forward of a model see to parts that these modules of it may be given later."""
    for module in modules:
        module.__dict__[_ATTRIBUTE] = _Model(model)


def watch(module: nn.Module, name: str, parameter: DTensor) -> None:
    """Has a forward see to what will have been written to a part that a module has or is to get, if
    a scale spans the ranks: that of the model which was converted, or, of one that was pickled
    since, the module's own.
    """
    if not (dtensors.is_cut(parameter) and dtensors.local_of(parameter)._store.needs_others):
        return
    whole = module.__dict__.get(_ATTRIBUTE, _NOT_CONVERTED).get()
    model = _called(whole or module, module)
    hooks = model._forward_pre_hooks.values()
    found = next((one for one in hooks if isinstance(one, WrittenParts)), None)
    if found is None:
        found = WrittenParts([])
        model.register_forward_pre_hook(found)
    found.add(Part(weakref.ref(module), name, parameter.device_mesh.ndim))


def _called(model: nn.Module, module: nn.Module) -> nn.Module:
    """The outermost module of a model that has a forward and a module in it: lists have none."""
    if not any(one is module for one in model.modules()):
        return module  # which has been taken out
    while type(model).forward is nn.Module.forward and model is not module:
        holders = (one for one in model.children() if any(m is module for m in one.modules()))
        model = next(holders)
    return model


class WrittenParts:
    """Before a forward of a model: makes the bytes of the parts that any rank has written to. Those
    under fully_shard are left to its gathers.
    """

    def __init__(self, parts: list[Part]):
        self._parts, self._agreements = parts, agreement.Agreements()

    def add(self, part: Part) -> None:
        """In the place of an older one of the parameter."""
        self._parts = [one for one in self._parts if one[:2] != part[:2]] + [part]

    def __call__(self, module: nn.Module, arguments) -> None:
        found = [both for part in self._parts if (both := part.local) is not None]
        if found:
            self._agreements.make_bytes(
                [local._store for _, local in found],
                lambda: [dtensors.shard_group(parameter) for parameter, _ in found],
            )
        else:  # fully_shard has made shards of them
            self._agreements = agreement.Agreements()

    def __deepcopy__(self, memo):
        return _written_parts(copy.deepcopy(self._places, memo))

    def __reduce__(self):
        return _written_parts, (self._places,)

    @property
    def _places(self) -> list[tuple[nn.Module, str, int]]:
        every = ((part.module(), *part[1:]) for part in self._parts)
        return [place for place in every if place[0] is not None]


def _written_parts(places: list[tuple[nn.Module, str, int]]) -> WrittenParts:
    return WrittenParts([Part(weakref.ref(place[0]), *place[1:]) for place in places])


compiling.leave_alone(WrittenParts.__call__)
