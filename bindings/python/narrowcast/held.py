"""Optimizers that hold parameters which nc.convert has replaced: they would go on with the old
ones, whose gradients never come.
"""

import gc
import warnings

import torch

from narrowcast.tensor import dtensors


def warn_of_optimizers(replaced: list[tuple[str, torch.Tensor]]) -> None:
    """RuntimeWarning if an optimizer that is alive holds one of these parameters, which are given
    with their names and no longer the model's. Sharded ones are still its own.
    """
    old = {
        id(parameter): name
        for name, parameter in replaced
        if not isinstance(parameter, dtensors.DTensor)
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
