"""Parts that have been written to, of weights that tensor or expert parallelism cuts in a format
whose scale spans the tensor. Shards of fully_shard are left to its gathers.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from narrowcast import _C
from narrowcast.flat import stale
from narrowcast.fsdp import torch_names
from narrowcast.ranks import debugging
from narrowcast.tensor import QuantizedTensor, compiling, dtensors

_MODEL = "_narrowcast_model"  # of a module: the model that nc.convert was given


def remember(model: nn.Module, modules: list[nn.Module]) -> None:
    """Has the forward of a model see to parts that these modules of it may be given later."""
    for module in modules:
        module.__dict__[_MODEL] = _Model(model)


def watch(module: nn.Module, parameter: DTensor) -> None:
    """Has forwards see to what will have been written to a part that a module has or is to get, if
    a scale spans the ranks: that of the model which was converted, once for all its parts; and the
    module's own, where that is called by itself.
    """
    if not (dtensors.is_cut(parameter) and dtensors.local_of(parameter)._store.needs_others):
        return
    model = module.__dict__.get(_MODEL, _Model(None)).get()
    for kind, place in ((OfModel, model), (OfModule, module)):
        if place is not None:
            hooks = place._forward_pre_hooks.values()
            if not any(type(one) is kind for one in hooks):
                place.register_forward_pre_hook(kind())
    _C.note_change()


class _Model:
    """A reference from a module to its model; in a copy of the model, to that copy."""

    def __init__(self, model: nn.Module | None):
        self.get = (lambda: None) if model is None else weakref.ref(model)

    def __deepcopy__(self, memo):
        return _Model(memo.get(id(self.get())))

    def __reduce__(self):
        return _Model, (None,)


class _Casts:
    """A hook before the forward of a module: casts the parts within it that were written to, with
    one reduction. No rank's part is empty, so each rank sees what was written; where nothing has
    changed since the last forward, it costs a look at counts.
    """

    def __init__(self):
        self._watch: _C.Watch | None = None

    def make_bytes(self, module: nn.Module) -> None:
        if self._watch is None or not self._watch.is_quiet or debugging.is_on:
            found = dict(_parts_of(module))
            self._watch = _C.Watch([local._store for local in found.values()])
            debugging.compare("the weights of a forward", lambda: _facts(found))
            stale.cast(
                (local._store, dtensors.shard_group(parameter))
                for parameter, local in found.items()
            )

    def __reduce__(self):
        return type(self), ()


def _parts_of(module: nn.Module) -> Iterator[tuple[DTensor, QuantizedTensor]]:
    """The cut parameters within a module whose scale spans ranks, each with this rank's part;
    without those of fully_shard.
    """
    sharded = torch_names.all_managed()
    for parameter in module.parameters():
        local = dtensors.local_of(parameter)
        if not isinstance(local, QuantizedTensor) or local._store.master is None:
            continue
        if dtensors.is_cut(parameter) and local._store.needs_others and parameter not in sharded:
            yield parameter, local


def _facts(found: dict[DTensor, QuantizedTensor]) -> list:
    """What the debug mode compares before a forward: which parts were written to."""
    return [
        dtensors.fact(one, local.describe() + ", written to" * local._store.is_stale)
        for one, local in found.items()
    ]


class OfModel(_Casts):
    """Of a whole model: with one reduction."""

    def __call__(self, module: nn.Module, arguments) -> None:
        self.make_bytes(module)


class OfModule(_Casts):
    """Of one module, which may be called by itself. A graph of torch.compile leaves it out: where
    blocks are compiled, the model's own hook has seen to their parts.
    """

    def __call__(self, module: nn.Module, arguments) -> None:
        if not torch.compiler.is_compiling() and not _is_recomputed():
            self.make_bytes(module)


def _is_recomputed() -> bool:
    """Whether a forward runs within a backward: of checkpointed activations."""
    return torch._C._current_graph_task_id() != -1


for _function in (_Casts.make_bytes, OfModel.__call__):
    compiling.leave_alone(_function)
