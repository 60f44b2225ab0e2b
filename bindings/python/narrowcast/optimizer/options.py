"""The options of an optimizer's groups, checked."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

import torch

from narrowcast import _C
from narrowcast.registry import StateFormat, state_format, state_formats
from narrowcast.tensor.quantization import check_rounding, check_word

if TYPE_CHECKING:
    from narrowcast.optimizer import FusedOptimizer

# Options of torch's optimizers that the fused ones have not.
_REFUSED = ("amsgrad", "maximize", "differentiable")
_FRACTIONS = {"beta1", "beta2"}  # below 1

# A rule's options; its states; and whether each of these never is negative, empty where the rule is
# not kept in state formats.
rule_facts = functools.cache(_C.rule_facts)


def refuse(given: dict, where: str, more: tuple[str, ...] = ()) -> None:
    """NotImplementedError for an option of torch's that is set and would have no effect. foreach
    and fused choose another way through the same arithmetic, of which there is one here. `more`:
    what the optimizer has not either.
    """
    unknown = [key for key in (*_REFUSED, *more) if given.get(key)]
    unknown += ["foreach"] if given.get("foreach") else []
    unknown += ["fused"] if given.get("fused") is False else []
    for key in unknown:
        raise NotImplementedError(f"{where} has {key}={given[key]}: not an option of narrowcast's")


def state_format_of(optimizer: FusedOptimizer) -> StateFormat | None:
    """The state format that state_dtype names; None of a dtype. ValueError if it is neither, or if
    the rule cannot be kept in formats.
    """
    state_dtype = optimizer.state_dtype
    if state_dtype in (torch.float32, torch.bfloat16):
        return None
    in_formats = rule_facts(optimizer.rule)[2]
    if isinstance(state_dtype, str) and in_formats:
        return state_format(state_dtype)
    names = f", or one of {', '.join(state_formats())}" if in_formats else f" for {optimizer.name}"
    raise ValueError(
        f"state_dtype is torch.float32 or torch.bfloat16{names}, and not {state_dtype!r}"
    )


def is_capturable(optimizer: FusedOptimizer) -> bool:
    """Whether a CUDA graph can take its steps. ValueError if groups differ in it."""
    every = {bool(group.get("capturable", False)) for group in optimizer.param_groups}
    if len(every) > 1:
        raise ValueError(
            "groups differ in capturable, and one step updates them all: give all of them the same"
        )
    return every == {True}


def check(
    optimizer: FusedOptimizer, group: dict, index: int
) -> tuple[list[float | torch.Tensor], tuple[int, bool]]:
    """The rule's options of a group, the base seed of its random words, and whether codes are
    rounded by them. ValueError or TypeError for an option that makes no sense;
    NotImplementedError for one of torch's that the optimizer has not. Where steps can be captured,
    tensors on a GPU stay there, and nobody looks at them.
    """
    refuse(group, f"group {index}", () if optimizer.can_be_captured else ("capturable",))
    try:
        numbers = {
            key: value if group.get("capturable") and _is_on_gpu(value) else float(value)
            for key, value in optimizer.numbers(group).items()
        }
        check_rounding(group["rounding"])
        check_word("seed", group["seed"])
        for key, value in numbers.items():
            if isinstance(value, torch.Tensor):
                continue
            if not 0 <= value < (1 if key in _FRACTIONS else math.inf):
                least = "from 0 up to 1" if key in _FRACTIONS else "finite, and 0 or above"
                raise ValueError(f"{key} is {value}, and must be {least}")
    except (TypeError, ValueError) as error:
        given = {key: value for key, value in group.items() if not key.startswith("param")}
        raise type(error)(f"group {index}: {error} ({given})") from None
    draws = int(group["seed"]), group["rounding"] == "stochastic"
    return [numbers[name] for name in rule_facts(optimizer.rule_of(group))[0]], draws


def _is_on_gpu(value) -> bool:
    return isinstance(value, torch.Tensor) and value.is_cuda
