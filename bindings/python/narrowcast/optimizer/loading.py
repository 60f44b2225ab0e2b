"""A state dict is loaded into FusedAdam: its own or torch's AdamW's, without a cast."""

import copy

import torch

from narrowcast.optimizer import members, saved_state, torchs_adam
from narrowcast.optimizer import state as states
from narrowcast.tensor import QuantizedTensor, dtensors
from narrowcast.tensor.casting import RngKey


def load_state_dict(optimizer, state_dict: dict, theirs: bool, check_group) -> None:
    """torch.optim.Optimizer.load_state_dict, but values are copied into the present state: the base
    class would cast it to the parameters' dtypes. All is checked before anything changes.
    `theirs`: it is one of torch's AdamW.
    `check_group(group, index)` raises ValueError or TypeError for options that make no sense.
    """
    saved_state.check_type("the state dict", state_dict, dict)
    state_dict = state_dict.copy()
    for hook in optimizer._optimizer_load_state_dict_pre_hooks.values():
        result = hook(optimizer, state_dict)
        state_dict = state_dict if result is None else result
    pairs, without = saved_state.matching(optimizer, state_dict, theirs)
    made = states.missing(optimizer, {parameter for parameter, _, _ in pairs}.__contains__)
    for parameter, name, saved in pairs:
        state = made.get(parameter) or optimizer.state[parameter]
        saved_state.check_type(f"{name}: its state in the state dict", saved, dict)
        not_saved = torchs_adam.NOT_THEIRS if theirs else _absent(saved)
        taken = {k: v for k, v in state.items() if k not in not_saved}
        if _is_own_master(parameter, saved):
            taken["master"] = parameter.detach()
        saved_state.check(taken, saved, name)
    pairs_of_groups = _options(optimizer, state_dict, check_group)
    for group, options in pairs_of_groups:
        group.update(options)
    for parameter in without:
        optimizer.state.pop(parameter, None)
    states.add(optimizer, made)
    _copy(optimizer, pairs, theirs)
    for hook in optimizer._optimizer_load_state_dict_post_hooks.values():
        hook(optimizer)


def _options(optimizer, state_dict: dict, check_group) -> list[tuple[dict, dict]]:
    """The optimizer's groups, each with the options that it gets."""
    pairs = []
    for index, group in enumerate(state_dict["param_groups"]):
        options = copy.deepcopy(torchs_adam.options_of(group, index))
        present = optimizer.param_groups[index]
        check_group({**present, **options}, index)
        pairs.append((present, options))
    return pairs


def _absent(saved: dict) -> set[str]:
    """Of a state that was saved in a format without delayed scaling: a history, which begins."""
    return {"history"} - set(saved)


def _is_own_master(parameter: torch.Tensor, saved: dict) -> bool:
    """Whether a plain float32 parameter gets a master, which another of a narrower dtype had."""
    is_plain = not isinstance(dtensors.local_of(parameter), QuantizedTensor)
    return is_plain and parameter.dtype == torch.float32 and "master" in saved


def _copy(optimizer, pairs: list[tuple[torch.Tensor, str, dict]], theirs: bool) -> None:
    """Values into the state. Of torch's Adam they say nothing about weights."""
    seeds = {entry.parameter: entry.seed for entry in members.entries(optimizer)}
    with torch.no_grad():
        for parameter, _, saved in pairs:
            state = optimizer.state[parameter]
            optimizer.narrow.take_up(parameter, state)  # what is loaded may be the state itself
            for key, value in state.items():
                if theirs and key in torchs_adam.NOT_THEIRS:
                    continue
                known = saved.get(key, 0)  # of no history, as after a write
                fill = value.copy_ if isinstance(known, torch.Tensor) else value.fill_
                fill(known)
            if _is_own_master(parameter, saved):
                parameter.copy_(saved["master"])
            if not theirs:
                _settle(parameter, state, seeds[parameter])
            optimizer.narrow.know(parameter, state)


def _settle(parameter: torch.Tensor, state: dict, seed: int | None) -> None:
    """What follows from a loaded state: bytes as those of the step before it was saved."""
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
