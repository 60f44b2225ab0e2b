"""What torch.optim.AdamW and Adam have saved, as FusedAdam takes it: moments and counts of steps.
Masters and histories are the weights' own. And what of theirs FusedAdam saves: their options, for
torch.distributed.checkpoint loads a full state dict into an optimizer that has all of its options.
"""

NOT_THEIRS = ("master", "history")  # entries of the state
# The rounding of groups that a checkpoint is to be loaded into: one of theirs leaves it there.
UNLOADED = "unloaded"
_WAYS = {"foreach": None, "fused": None}  # to compute the same
_REFUSED = {
    "amsgrad": "which divides by the largest second moments",
    "maximize": "which climbs",
    "differentiable": "whose steps have gradients",
}
_DECOUPLED = "decoupled_weight_decay"  # what FusedAdam calls adamw


def is_theirs(state_dict: dict) -> bool:
    """Whether the groups have none of the options that those of FusedAdam have beside Adam's."""
    groups = state_dict["param_groups"]
    return bool(groups) and all(_lacks_rounding(group) for group in groups)


def _lacks_rounding(group: dict) -> bool:
    return group.get("rounding", UNLOADED) == UNLOADED


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
    if _lacks_rounding(group):
        dropped.add("rounding")
    options = {key: value for key, value in group.items() if key not in dropped}
    if _DECOUPLED in group:
        options["adamw"] = bool(group[_DECOUPLED])
    return options


def with_their_options(group: dict) -> dict:
    """A group to save."""
    return {**dict.fromkeys(_REFUSED, False), **_WAYS, _DECOUPLED: group["adamw"], **group}
