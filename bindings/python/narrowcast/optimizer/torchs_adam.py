"""What torch.optim.AdamW and Adam have saved, as FusedAdam takes it: moments and counts of steps.
Masters and histories are the weights' own. And what of theirs FusedAdam saves: their options, for
torch.distributed.checkpoint loads a full state dict into an optimizer that has all of its options.
"""

import torch

from narrowcast.tensor import memory

NOT_THEIRS = ("master", "history")  # entries of the state
# The rounding of groups that a checkpoint is to be loaded into: one of theirs leaves it there.
_UNLOADED = "unloaded"
_WAYS = {"foreach": None, "fused": None}  # to compute the same
_REFUSED = {
    "amsgrad": "which divides by the largest second moments",
    "maximize": "which climbs",
    "differentiable": "whose steps have gradients",
}
_DECOUPLED = "decoupled_weight_decay"  # what FusedAdam calls adamw
_LAST_STEP = "last_step"  # the highest count of steps in a group as FusedAdam saved it


def is_theirs(state_dict: dict) -> bool:
    """Whether the groups have none of the options that those of FusedAdam have beside Adam's. Or
    they have them, but torch's took steps from there: it keeps all that it has loaded, and masters
    and histories are those of FusedAdam's last step, long after the weights have gone on.
    """
    groups, state = state_dict["param_groups"], state_dict["state"]
    have_none = bool(groups) and all(_lacks_rounding(group) for group in groups)
    return have_none or any(_went_on(group, state) for group in groups)


def _went_on(group: dict, state: dict) -> bool:
    last = group.get(_LAST_STEP)
    return isinstance(last, int) and any(step > last for step in _steps(group, state))


def _steps(group: dict, state: dict):
    """Of the parameters that have some; of those that make no sense it is said later."""
    for key in group["params"]:
        saved = state.get(key)
        step = saved.get("step") if isinstance(saved, dict) else None
        is_plain = type(step) is torch.Tensor and not step.is_meta
        if is_plain and memory.problem_with(step) is None and step.dim() == 0:
            step = step.item()
        if isinstance(step, int | float):
            yield step


def _lacks_rounding(group: dict) -> bool:
    return group.get("rounding", _UNLOADED) == _UNLOADED


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
    dropped = {"params", "capturable", _DECOUPLED, _LAST_STEP, *_WAYS, *_REFUSED}
    if _lacks_rounding(group):
        dropped.add("rounding")
    options = {key: value for key, value in group.items() if key not in dropped}
    if _DECOUPLED in group:
        options["adamw"] = bool(group[_DECOUPLED])
    return options


def with_their_options(group: dict, state: dict) -> dict:
    """A group to save, of a state dict's state."""
    options = {**dict.fromkeys(_REFUSED, False), **_WAYS, _DECOUPLED: group["adamw"], **group}
    return {**options, _LAST_STEP: int(max(_steps(group, state), default=0))}


def unloaded(group: dict) -> dict:
    """A group that a checkpoint is to be loaded into."""
    return {**group, "rounding": _UNLOADED, _LAST_STEP: _UNLOADED}
