"""The options of an optimizer's groups, checked."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from narrowcast import _C
from narrowcast.tensor.quantization import check_rounding, check_word

if TYPE_CHECKING:
    from narrowcast.optimizer import FusedOptimizer

# Options of torch's optimizers that the fused ones have not; and the values with which torch
# chooses another way through the same arithmetic, which has no meaning here.
REFUSED = ("amsgrad", "maximize", "differentiable", "capturable")
_OTHER_WAYS = {"foreach": True, "fused": False}
_FRACTIONS = ("beta1", "beta2")  # below 1


def refuse(given: dict, where: str) -> None:
    """NotImplementedError for an option of torch's that is set and would have no effect."""
    for key, value in given.items():
        if (key in REFUSED and value) or (key in _OTHER_WAYS and value == _OTHER_WAYS[key]):
            raise NotImplementedError(f"{where} has {key}={value}: not an option of narrowcast's")


def check(optimizer: FusedOptimizer, group: dict, index: int) -> tuple[list[float], int | None]:
    """The rule's options of a group, and the base seed of its stochastic rounding, None if it
    rounds to nearest. ValueError or TypeError for an option that makes no sense;
    NotImplementedError for one of torch's that the optimizer has not.
    """
    refuse(group, f"group {index}")
    try:
        numbers = {key: float(value) for key, value in optimizer.numbers(group).items()}
        check_rounding(group["rounding"])
        check_word("seed", group["seed"])
        for key, value in numbers.items():
            if not (math.isfinite(value) and value >= 0 and (key not in _FRACTIONS or value < 1)):
                least = "from 0 up to 1" if key in _FRACTIONS else "finite, and 0 or above"
                raise ValueError(f"{key} is {value}, and must be {least}")
    except (TypeError, ValueError) as error:
        given = {key: value for key, value in group.items() if not key.startswith("param")}
        raise type(error)(f"group {index}: {error} ({given})") from None
    seed = int(group["seed"]) if group["rounding"] == "stochastic" else None
    return [numbers[name] for name in _C.rule_names(optimizer.rule)[0]], seed
