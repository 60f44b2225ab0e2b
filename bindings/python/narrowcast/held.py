"""Optimizers that hold parameters which nc.convert has replaced: they would go on with the old
ones, whose gradients never come.
"""

import gc
import sys
import warnings

import torch
from torch import nn

from narrowcast.selection import Weight
from narrowcast.tensor import dtensors


def warn_of_optimizers(weights: list[Weight]) -> None:
    """RuntimeWarning if an optimizer that is alive holds one of these parameters, which are no
    longer the model's. Sharded ones are still its own. Nothing but `weights` may refer to them on
    the caller's side.
    """
    if not _are_held(weights):
        return
    old = {
        id(weight): name for name, weight, _ in weights if not isinstance(weight, dtensors.DTensor)
    }
    # Only the type of an object is asked: looking at objects may run any code of theirs.
    optimizers = [one for one in gc.get_objects() if issubclass(type(one), torch.optim.Optimizer)]
    for optimizer in optimizers:
        groups = getattr(optimizer, "param_groups", ())  # one may just be under construction
        every = [id(one) for group in groups for one in group["params"]]
        names = [old[one] for one in every if one in old]
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            warnings.warn(
                f"nc.convert has replaced {names[0]}{more}, which an optimizer "
                f"({type(optimizer).__name__}) was made with: it holds the old parameters, and its "
                "steps would leave the model as it is. Make the optimizer after nc.convert, and "
                "after fully_shard",
                RuntimeWarning,
                stacklevel=3,  # the caller of nc.convert
            )


def _are_held(weights: list[Weight]) -> bool:
    """Whether anybody else refers to one of them. Optimizers are looked for among all objects of
    the process, which takes long where there are many, and mostly nobody holds what was replaced.
    """
    nobodys: list[Weight] = [("", nn.Parameter(torch.empty(0)), [])]
    least = min(sys.getrefcount(weight) for _, weight, _ in nobodys)
    return any(sys.getrefcount(weight) > least for _, weight, _ in weights)
