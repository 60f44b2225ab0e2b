"""Averages of weights are averages of masters: steps of an average are smaller than what a format
tells apart. torch.optim.swa_utils.AveragedModel computes them in place or not, by functions of the
user's; so while it does, a weight stands for its master in all arithmetic.
"""

import contextlib
import functools
import threading

import torch
from torch.optim import swa_utils
from torch.utils._pytree import tree_map_only

from narrowcast.operators import table
from narrowcast.operators.common import written
from narrowcast.tensor import QuantizedTensor

_threads = threading.local()


@contextlib.contextmanager
def _averaging():
    before, _threads.averages = is_averaging(), True
    try:
        yield
    finally:
        _threads.averages = before


def is_averaging() -> bool:
    """Whether this thread is in AveragedModel.update_parameters()."""
    return getattr(_threads, "averages", False)


def _of_masters(update_parameters):
    @functools.wraps(update_parameters)
    def update(self, model):
        with _averaging():
            return update_parameters(self, model)

    return update


swa_utils.AveragedModel.update_parameters = _of_masters(swa_utils.AveragedModel.update_parameters)


def value_of(tensor: QuantizedTensor) -> torch.Tensor:
    """What a weight is in arithmetic: decoded, or in an average its master."""
    return high_precision(tensor) if is_averaging() else tensor.decode(tensor.dtype)


def high_precision(tensor: QuantizedTensor) -> torch.Tensor:
    """float32: the master, or the decoded value where none is kept."""
    return tensor.decode(torch.float32) if tensor.master is None else tensor.master


def is_one(func, args, kwargs) -> bool:
    """Whether an operator in place is a step of an average: any in an AveragedModel; elsewhere
    lerp_ of weights with masters, or of lists in which plain tensors meet plain ones.
    """
    if is_averaging() or func not in table.AVERAGE.operators:
        return is_averaging()
    averaged, present = (one if isinstance(one, list) else [one] for one in args[:2])
    return all(map(_are_alike, averaged, present))


def _are_alike(*pair) -> bool:
    quantized = [one for one in pair if isinstance(one, QuantizedTensor)]
    return not quantized or (len(quantized) == 2 and None not in [one.master for one in quantized])


def run(func, args, kwargs):
    """Runs an operator in place on the masters; the bytes are made when they are next needed."""
    targets = [one for one in written(func, args, kwargs) if isinstance(one, QuantizedTensor)]
    values = {id(one): high_precision(one) for one in targets}
    plain = tree_map_only(
        QuantizedTensor, lambda one: values.get(id(one), high_precision(one)), (args, kwargs)
    )
    func(*plain[0], **plain[1])
    for one in targets:
        if one.master is None:
            one.write(values[id(one)])
        else:
            one._store.mark_stale(one._view.region.row_end)
    return args[0] if func._schema.returns else None
