"""The options of FusedAdam's groups, checked."""

from narrowcast import _C
from narrowcast.tensor.quantization import check_rounding, check_word

# Options of torch's AdamW that FusedAdam has not.
REFUSED = ("amsgrad", "maximize", "differentiable", "capturable")


def check(group: dict, index: int) -> tuple[_C.AdamOptions, int | None]:
    """A group's constants, and the base seed of its stochastic rounding, None if it rounds to
    nearest. ValueError or TypeError for what makes no sense; NotImplementedError for an Adam that
    FusedAdam is not.
    """
    for key in REFUSED:
        if group.get(key):
            raise NotImplementedError(f"group {index} has {key}=True: not an option of FusedAdam")
    try:
        lr, eps, decay = (float(group[key]) for key in ("lr", "eps", "weight_decay"))
        beta1, beta2 = (float(beta) for beta in group["betas"])
        check_rounding(group["rounding"])
        check_word("seed", group["seed"])
    except (TypeError, ValueError) as error:
        given = {key: value for key, value in group.items() if not key.startswith("param")}
        raise type(error)(f"group {index}: {error} ({given})") from None
    if not (lr >= 0 and eps >= 0 and decay >= 0 and 0 <= beta1 < 1 and 0 <= beta2 < 1):
        raise ValueError(
            f"group {index}: lr {lr}, eps {eps} and weight_decay {decay} must be 0 or above, and "
            f"betas {beta1}, {beta2} from 0 up to 1"
        )
    seed = int(group["seed"]) if group["rounding"] == "stochastic" else None
    return _C.AdamOptions(lr, beta1, beta2, eps, decay, bool(group["adamw"])), seed
