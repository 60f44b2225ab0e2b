"""Who else holds parameters that nc.convert and nc.to_plain replace: optimizers and other modules
would go on with the old ones.
"""

import gc
import sys
import warnings

import torch
from torch import nn

from narrowcast.selection import Weight
from narrowcast.tensor import dtensors


def elsewhere(weights: list[Weight]) -> set[int]:
    """The ids of parameters that somebody has beside the modules which they are listed with, whose
    memory is then not the caller's to take. Nothing but `weights` may refer to them on its side.
    """
    least = _least_count()
    return {
        id(weight)
        for _, weight, places in weights
        if sys.getrefcount(weight) > least + sum(getattr(*place) is weight for place in places)
    }


def warn_of_holders(weights: list[Weight], function: str) -> None:
    """RuntimeWarning if an optimizer that is alive, or a module outside of the model, holds one of
    these parameters, which the model has no longer. Sharded ones are still its own. Nothing but
    `weights` may refer to them on the caller's side. `function`: what has replaced them.
    """
    least = _least_count()
    replaced = [entry for entry in weights if not isinstance(entry[1], dtensors.DTensor)]
    # Holders are looked for among all objects of the process, which takes long where there are
    # many, and mostly nobody holds what was replaced.
    if not any(sys.getrefcount(weight) > least for _, weight, _ in replaced):
        return
    old = {id(weight): name for name, weight, _ in replaced}
    # Only the type of an object is asked: looking at objects may run any code of theirs.
    every = [(one, type(one)) for one in gc.get_objects()]
    for one, kind in every:
        if issubclass(kind, torch.optim.Optimizer):
            _warn_of_optimizer(one, old, function)
        elif issubclass(kind, nn.Module):
            _warn_of_module(one, old, function)


def _least_count() -> int:
    """References to a parameter of which nobody knows but such a list."""
    nobodys: list[Weight] = [("", nn.Parameter(torch.empty(0)), [])]
    return min(sys.getrefcount(weight) for _, weight, _ in nobodys)


def _warn_of_optimizer(optimizer, old: dict[int, str], function: str) -> None:
    groups = getattr(optimizer, "param_groups", ())  # one may just be under construction
    every = [id(one) for group in groups for one in group["params"]]
    names = [old[one] for one in every if one in old]
    if names:
        _warn(
            f"{function} has replaced {_listed(names)}, which an optimizer "
            f"({type(optimizer).__name__}) was made with: it holds the old parameters, and its "
            f"steps would leave the model as it is. Make the optimizer after {function}, and "
            "after fully_shard"
        )


def _warn_of_module(module, old: dict[int, str], function: str) -> None:
    every = module.__dict__.get("_parameters", {})  # one may just be under construction
    names = [old[id(one)] for one in every.values() if id(one) in old]
    if names:
        _warn(
            f"{function} has replaced {_listed(names)}, which a module outside of the model that "
            f"it was given ({type(module).__name__}) shared: from now on they are two parameters, "
            "each with a value of its own. Give it the model that has both, or leave the parameter "
            "out by a filter"
        )


def _listed(names: list[str]) -> str:
    return f"{names[0]} and {len(names) - 1} more" if len(names) > 1 else names[0]


def _warn(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=5)  # the caller of the function
