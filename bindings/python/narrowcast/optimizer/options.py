"""The options of FusedAdam and of its groups, checked."""

import torch

from narrowcast import _C
from narrowcast.tensor.quantization import check_rounding, check_word

SAME_RESULT = ("foreach", "fused")  # options of torch's AdamW: ways to compute the same
REFUSED = {
    "amsgrad": "which divides by the largest second moments",
    "maximize": "which climbs",
    "differentiable": "whose steps have gradients",
}


def check_choices(state_dtype: torch.dtype, capturable: bool) -> None:
    """ValueError or NotImplementedError for what all groups have alike."""
    if state_dtype not in (torch.float32, torch.bfloat16):
        raise ValueError(f"state_dtype is torch.float32 or torch.bfloat16, not {state_dtype}")
    if capturable:
        why = "steps are counted, and their constants computed, on the CPU"
        raise NotImplementedError(f"capturable=True is not there yet: {why}")


def seed_of(group: dict, index: int) -> int | None:
    """A group's base seed, None if it rounds to nearest. ValueError or TypeError if it makes no
    sense.
    """
    try:
        check_rounding(group["rounding"])
        check_word("seed", group["seed"])
    except (TypeError, ValueError) as error:
        raise type(error)(f"group {index}: {error}") from None
    return int(group["seed"]) if group["rounding"] == "stochastic" else None


def check(group: dict, index: int) -> None:
    """ValueError or TypeError if a group's options make no sense."""
    constants(group, index)
    seed_of(group, index)


def constants(group: dict, index: int) -> _C.AdamOptions:
    """A group's constants. ValueError if one makes no sense."""
    check_is_adam(group, f"group {index}")
    try:
        lr, eps, decay = (float(group[key]) for key in ("lr", "eps", "weight_decay"))
        beta1, beta2 = (float(beta) for beta in group["betas"])
    except (TypeError, ValueError) as error:
        given = {key: group[key] for key in ("lr", "eps", "weight_decay", "betas")}
        raise type(error)(f"group {index}: of {given}, {error}") from None
    if not (lr >= 0 and eps >= 0 and decay >= 0 and 0 <= beta1 < 1 and 0 <= beta2 < 1):
        raise ValueError(
            f"group {index}: lr {lr}, eps {eps} and weight_decay {decay} must be 0 or above, and "
            f"betas {beta1}, {beta2} from 0 up to 1"
        )
    return _C.AdamOptions(lr, beta1, beta2, eps, decay, bool(group["adamw"]))


def check_not_captured() -> None:
    """RuntimeError while a CUDA graph is captured."""
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "FusedAdam: a CUDA graph is being captured, and steps are counted on the host, so each "
            "replay would take the same step. Capture forward and backward alone"
        )


def check_is_adam(group: dict, what: str) -> None:
    """ValueError for a group of an Adam that FusedAdam is not."""
    for key, does in REFUSED.items():
        if group.get(key):
            raise ValueError(
                f"{what} has {key}={group[key]!r}: an Adam {does}, and FusedAdam has no such "
                "option. Leave it out; a state that was saved with it goes on in the optimizer "
                "that saved it alone"
            )


def check_keywords(given: dict) -> None:
    """TypeError for what torch's AdamW does not take either; ValueError for what it does alone."""
    for key in given:
        if key not in (*SAME_RESULT, *REFUSED):
            raise TypeError(f"FusedAdam has no option {key!r}")
    check_is_adam(given, "FusedAdam")
