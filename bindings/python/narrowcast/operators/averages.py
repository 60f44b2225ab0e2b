"""Averages of weights are averages of masters: steps of an average are smaller than what a format
tells apart. torch.optim.swa_utils.AveragedModel computes averages in place or not, by functions of
the user's; so while it does, a weight stands for its master in all arithmetic.
"""

import functools
import threading

import torch

from narrowcast.operators.common import run_on_values, value_of, written
from narrowcast.tensor import QuantizedTensor, dtensors

aten = torch.ops.aten
_STEPS = (
    *(aten.lerp_.Scalar, aten.lerp_.Tensor, aten._foreach_lerp_.List),
    *(aten._foreach_lerp_.Scalar, aten._foreach_lerp_.ScalarList),
)
_threads = threading.local()


def is_averaging() -> bool:
    """Whether this thread is in AveragedModel.update_parameters()."""
    return getattr(_threads, "frozen", None) is not None


def of_masters(update_parameters):
    """AveragedModel's function, in which weights stand for their masters."""

    @functools.wraps(update_parameters)
    def update(self, model):
        before, _threads.frozen = getattr(_threads, "frozen", None), _frozen(self.module, model)
        try:
            return update_parameters(self, model)
        finally:
            _threads.frozen = before

    return update


def _frozen(averaged: torch.nn.Module, model: torch.nn.Module) -> set[int]:
    """The stores of averages without masters that equal the model's weights: their averages are
    themselves, and functions of the user's would round their values.
    """
    pairs = zip(averaged.parameters(), model.parameters(), strict=False)
    weights = [tuple(map(dtensors.local_of, pair)) for pair in pairs]
    bare = [pair for pair in weights if all(map(_is_bare, pair))]
    return {id(mine._store) for mine, other in bare if torch.equal(mine, other.to(mine.device))}


def _is_bare(weight: torch.Tensor) -> bool:
    return isinstance(weight, QuantizedTensor) and weight.master is None


def is_one(func, args) -> bool:
    """Whether an operator in place is a step of an average: any in an AveragedModel; elsewhere
    lerp_ of weights with masters, or of lists with plain tensors in the same places.
    """
    if is_averaging() or func not in _STEPS:
        return is_averaging()
    averaged, present = (one if isinstance(one, list) else [one] for one in args[:2])
    return all(map(_are_alike, averaged, present))


def _are_alike(*pair) -> bool:
    quantized = [one for one in pair if isinstance(one, QuantizedTensor)]
    return not quantized or (len(quantized) == 2 and None not in [one.master for one in quantized])


def run(func, args, kwargs):
    """Runs an operator in place on the masters; the bytes are made when they are next needed."""
    targets = [one for one in written(func, args, kwargs) if isinstance(one, QuantizedTensor)]
    values = {id(one): value_of(one) for one in targets}
    run_on_values(func, args, kwargs, lambda one: values.get(id(one), value_of(one)))
    for one in targets:
        if one.master is None:
            write(one, values[id(one)])
        else:
            one._store.mark_stale(one._view.region.row_end)
    return args[0] if func._schema.returns else None


def write(average: QuantizedTensor, value: torch.Tensor) -> None:
    """Sets an average to a value. One without a master gets one if it moves: by small steps."""
    if id(average._store) not in _threads.frozen:
        average._store.keep_master()
        average.write(value)
