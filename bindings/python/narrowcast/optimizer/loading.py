"""A state dict is loaded into a fused optimizer: its own or torch's, without a cast."""

import copy
from itertools import chain

import torch

from narrowcast.optimizer import options, parameters, residuals, state_formats
from narrowcast.optimizer import state as states
from narrowcast.tensor import dtensors

# Options of all torch's optimizers that choose a way through the same arithmetic: groups that have
# them are torch's.
_WAYS = ("foreach", "fused")
_KEPT = ("params", "capturable", *_WAYS)  # of a group that is loaded into
_OPTIONAL = ("master", "history", residuals.KEY)  # entries that a saved state may lack


def load_state_dict(optimizer, state_dict: dict) -> None:
    """torch.optim.Optimizer.load_state_dict, but values are copied into the present state: the base
    class would cast it to the parameters' dtypes. Options, entries and shapes are checked before
    anything changes.
    """
    state_dict = state_dict.copy()
    for hook in optimizer._optimizer_load_state_dict_pre_hooks.values():
        result = hook(optimizer, state_dict)
        state_dict = state_dict if result is None else result
    groups, saved_groups = optimizer.param_groups, state_dict["param_groups"]
    sizes, saved_sizes = ([len(one["params"]) for one in every] for every in (groups, saved_groups))
    if sizes != saved_sizes:
        raise ValueError(
            f"the state dict has groups of {saved_sizes} parameters, the optimizer of {sizes}"
        )
    entries = parameters.entries(optimizer)
    is_torchs = any(_WAYS[0] in group for group in saved_groups)
    keys = chain.from_iterable(group["params"] for group in saved_groups)
    loaded = {}
    for key, entry in zip(keys, entries, strict=True):
        # Frozen parameters may have none, or an empty one.
        if saved := optimizer.adopted(state_dict["state"].get(key, {})):
            group = groups[entry.group]
            state = entry.state or states.make_state(optimizer, entry.parameter, group)
            saved = state_formats.converted(state, saved, entry)
            if is_torchs:  # which carries unknown entries along
                saved = {name: one for name, one in saved.items() if name not in _OPTIONAL}
            _check(state, saved, entry.name)
            loaded[entry.parameter] = state, saved
    loaded_options = [_options_of(group) for group in saved_groups]
    for index, (group, given) in enumerate(zip(groups, loaded_options, strict=True)):
        options.check(optimizer, {**group, **given}, index)
    for group, given in zip(groups, loaded_options, strict=True):
        group.update(given)
        for parameter in group["params"]:
            optimizer.state.pop(parameter, None)  # without any it begins anew
    optimizer.loaded_histories.clear()
    for parameter, (state, saved) in loaded.items():
        optimizer.state[parameter] = state
        _copy(parameter, state, saved)
        given, present = saved.get("history"), state.get("history")
        is_same_format = None not in (given, present) and given.shape == present.shape
        if is_same_format and given[0] != 0:  # it has begun
            history = given.to(present.device, copy=True)
            optimizer.loaded_histories[parameter] = state["history"] = history
    for hook in optimizer._optimizer_load_state_dict_post_hooks.values():
        hook(optimizer)


def _check(state: dict, saved: dict, name: str) -> None:
    """ValueError unless a parameter's state can be that which was saved. Without a master the value
    is the parameter's; without a history one begins anew, and without a residual it is 0.
    """
    for key, value in state.items():
        other = saved.get(key)
        if other is None and key not in _OPTIONAL:
            raise ValueError(
                f"{name}: the state dict has no {key!r}, only {sorted(map(str, saved))}. It must "
                "come from such an optimizer, with such a parameter, or from torch's of its name. "
                "If the optimizer has two rules (Muon), the same parameters must be each one's"
            )
        if key == "step" or other is None:
            continue
        is_sharded = [isinstance(one, dtensors.DTensor) for one in (value, other)]
        if len(set(is_sharded)) > 1 or tuple(value.shape) != tuple(other.shape):
            raise ValueError(
                f"{name}: {key} has shape {tuple(other.shape)} in the state dict "
                f"({type(other).__name__}), {tuple(value.shape)} in the optimizer "
                f"({type(value).__name__}). torch.distributed.checkpoint.state_dict."
                "set_optimizer_state_dict distributes a full state dict"
            )


def _options_of(group: dict) -> dict:
    """The options that a saved group brings."""
    return {key: copy.deepcopy(value) for key, value in group.items() if key not in _KEPT}


@torch.no_grad()
def _copy(parameter: torch.Tensor, state: dict, saved: dict) -> None:
    """Copies what was saved into a parameter's state. A master is the parameter's value, too. A
    residual that was not saved is 0.
    """
    if residuals.KEY in state and residuals.KEY not in saved:
        state[residuals.KEY].zero_()
    for key, value in state.items():
        if key in saved and key != "history":
            fill = value.copy_ if isinstance(saved[key], torch.Tensor) else value.fill_
            fill(saved[key])
    if "master" in state and "master" in saved:
        dtensors.local_of(parameter).copy_(dtensors.local_of(state["master"]))
