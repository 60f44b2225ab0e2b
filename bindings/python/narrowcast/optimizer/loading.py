"""A state dict is loaded into FusedAdam: its own or torch's AdamW's, without a cast."""

import copy

import torch

from narrowcast.optimizer import options, parameters, saved_state
from narrowcast.optimizer import state as states
from narrowcast.tensor import QuantizedTensor, dtensors
from narrowcast.tensor.casting import RngKey

_NOT_ADAMWS = ("master", "history")  # entries of the state that torch's AdamW has not


def load_state_dict(optimizer, state_dict: dict, of_adamw: bool) -> None:
    """torch.optim.Optimizer.load_state_dict, but values are copied into the present state: the base
    class would cast it to the parameters' dtypes. All is checked before anything changes.
    `of_adamw`: it is one of torch's AdamW.
    """
    saved_state.check_type("the state dict", state_dict, dict)
    state_dict = state_dict.copy()
    for hook in optimizer._optimizer_load_state_dict_pre_hooks.values():
        result = hook(optimizer, state_dict)
        state_dict = state_dict if result is None else result
    pairs, without = saved_state.matching(optimizer, state_dict, of_adamw)
    made = states.missing(optimizer, {parameter for parameter, _, _ in pairs}.__contains__)
    for parameter, name, saved in pairs:
        state = made.get(parameter) or optimizer.state[parameter]
        saved_state.check_type(f"{name}: its state in the state dict", saved, dict)
        not_saved = _NOT_ADAMWS if of_adamw else _absent(saved)
        taken = {k: v for k, v in state.items() if k not in not_saved}
        if _is_own_master(parameter, saved):
            taken["master"] = parameter.detach()
        saved_state.check(taken, saved, name)
    loaded_groups = [_options_of(group, at) for at, group in enumerate(state_dict["param_groups"])]
    for index, (group, loaded) in enumerate(
        zip(optimizer.param_groups, loaded_groups, strict=True)
    ):
        options.check({**group, **loaded}, index)
    for group, loaded in zip(optimizer.param_groups, loaded_groups, strict=True):
        group.update(loaded)
    for parameter in without:
        optimizer.state.pop(parameter, None)
    states.add(optimizer, made)
    _copy(optimizer, pairs, of_adamw)
    for hook in optimizer._optimizer_load_state_dict_post_hooks.values():
        hook(optimizer)


def _options_of(group: dict, index: int) -> dict:
    """The options that a saved group brings. ValueError for an Adam that FusedAdam is not."""
    options.check_is_adam(group, f"group {index} of the state dict")
    adamw = saved_state.DECOUPLED
    dropped = {"params", "capturable", adamw, *options.SAME_RESULT, *options.REFUSED}
    loaded = {key: copy.deepcopy(value) for key, value in group.items() if key not in dropped}
    if adamw in group:
        loaded["adamw"] = bool(group[adamw])
    return loaded


def _absent(saved: dict) -> set[str]:
    """Entries that a saved state may lack: a history, if its format had none; it begins anew."""
    return {"history"} - set(saved)


def _is_own_master(parameter: torch.Tensor, saved: dict) -> bool:
    """Whether a plain float32 parameter gets a master, which another of a narrower dtype had."""
    is_plain = not isinstance(dtensors.local_of(parameter), QuantizedTensor)
    return is_plain and parameter.dtype == torch.float32 and "master" in saved


def _copy(optimizer, pairs: list[tuple[torch.Tensor, str, dict]], of_adamw: bool) -> None:
    """Copies values into the state. With of_adamw, masters and weights are left as they are."""
    seeds = {entry.parameter: entry.seed for entry in parameters.entries(optimizer)}
    with torch.no_grad():
        for parameter, _, saved in pairs:
            state = optimizer.state[parameter]
            # What is loaded may be the state itself.
            optimizer.low_precision.sync_master(parameter, state)
            for key, value in state.items():
                if of_adamw and key in _NOT_ADAMWS:
                    continue
                known = saved.get(key, 0)  # 0: no history yet, as after a write
                fill = value.copy_ if isinstance(known, torch.Tensor) else value.fill_
                fill(known)
            if _is_own_master(parameter, saved):
                parameter.copy_(saved["master"])
            if not of_adamw:
                _remake_value(parameter, state, seeds[parameter])
            optimizer.low_precision.note_master(parameter, state)


def _remake_value(parameter: torch.Tensor, state: dict, seed: int | None) -> None:
    """A parameter's value from its loaded state; the bytes are those that its last step left."""
    local = dtensors.local_of(parameter)
    master = dtensors.local_of(state["master"]) if "master" in state else None
    if isinstance(local, QuantizedTensor):
        history = state["history"].clone() if "history" in state else None
        local.write(master)
        step = int(state["step"])
        stochastic = seed is not None and step > 0  # before the first step, all is to nearest
        rng_key = RngKey(seed, step, dtensors.first_element(parameter)) if stochastic else None
        local._store.resume(history, rng_key)
    elif master is not None:
        local.copy_(master)
