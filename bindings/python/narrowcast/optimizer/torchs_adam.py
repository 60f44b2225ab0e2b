"""What torch.optim.AdamW and Adam have saved, as FusedAdam takes it where it is told so: moments,
counts of steps and options. Masters and histories are the weights' own.
"""

NOT_THEIRS = ("master", "history")  # entries of the state
_WAYS = ("foreach", "fused")  # to compute the same
_REFUSED = {
    "amsgrad": "which divides by the largest second moments",
    "maximize": "which climbs",
    "differentiable": "whose steps have gradients",
}
_DECOUPLED = "decoupled_weight_decay"  # what FusedAdam calls adamw


def check_not_theirs(state_dict: dict) -> None:
    """ValueError if torch's AdamW or Adam has saved it, perhaps after it loaded one of FusedAdam's:
    it keeps the masters of that, which are no longer the weights'.
    """
    if any(_DECOUPLED in group for group in state_dict["param_groups"]):
        raise ValueError(
            "the state dict is one of torch.optim.AdamW or Adam, which have no masters: "
            "load_state_dict(state_dict, of_adamw=True) takes its moments, steps and options, and "
            "leaves the masters as they are. For torch.distributed.checkpoint see "
            "docs/checkpoints.md"
        )


def check(group: dict, what: str) -> None:
    """ValueError for a group of an Adam that FusedAdam is not."""
    for key, does in _REFUSED.items():
        if group.get(key):
            raise ValueError(
                f"{what} has {key}={group[key]!r}: an Adam {does}, and FusedAdam has no such "
                "option. Leave it out; a state that was saved with it goes on in the optimizer "
                "that saved it alone"
            )


def check_keywords(given: dict) -> None:
    """TypeError for what torch's AdamW does not take either; ValueError for what it does alone."""
    for key in given:
        if key not in (*_WAYS, *_REFUSED):
            raise TypeError(f"FusedAdam has no option {key!r}")
    check(given, "FusedAdam")


def options_of(group: dict, index: int) -> dict:
    """The options of a saved group. ValueError for an Adam that FusedAdam is not."""
    check(group, f"group {index} of the state dict")
    dropped = {"params", "capturable", _DECOUPLED, *_WAYS, *_REFUSED}
    options = {key: value for key, value in group.items() if key not in dropped}
    if _DECOUPLED in group:
        options["adamw"] = bool(group[_DECOUPLED])
    return options
