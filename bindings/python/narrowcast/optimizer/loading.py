"""A state dict is loaded into FusedAdam: its own or torch's AdamW's, without a cast."""

import copy
import warnings
from itertools import chain

import torch

from narrowcast.master.weight import MasterWeight
from narrowcast.optimizer import options, parameters
from narrowcast.optimizer import state as states
from narrowcast.tensor import dtensors
from narrowcast.tensor.casting import RngKey

_DECOUPLED = "decoupled_weight_decay"  # what torch's AdamW calls adamw
_NOT_ADAMWS = ("master", "history")  # entries of the state that torch's AdamW has not


def load_state_dict(optimizer, state_dict: dict, of_adamw: bool) -> None:
    """torch.optim.Optimizer.load_state_dict, but values are copied into the present state: the base
    class would cast it to the parameters' dtypes. Options, entries and shapes are checked before
    anything changes. `of_adamw`: masters and weights are left as they are.
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
    states.share_masters(optimizer)
    entries = parameters.entries(optimizer)
    have_masters = any(one.has_master for one in entries)
    is_adamws = any(_DECOUPLED in group for group in saved_groups)
    if not of_adamw and have_masters and is_adamws:
        raise ValueError(
            "the state dict is one of torch.optim.AdamW or Adam, which has no masters or old ones: "
            "load_state_dict(state_dict, of_adamw=True) leaves the masters as they are"
        )
    of_adamw = of_adamw or is_adamws  # masters that AdamW has carried along are old ones
    keys = chain.from_iterable(group["params"] for group in saved_groups)
    loaded, ignored = {}, []
    for key, entry in zip(keys, entries, strict=True):
        # Frozen parameters may have none, or an empty one.
        if saved := state_dict["state"].get(key):
            state = entry.state or states.make_state(entry.parameter, optimizer.state_dtype)
            left = _NOT_ADAMWS if of_adamw else ()
            needed = {key: one for key, one in state.items() if key not in left}
            if _has_own_master(entry, saved, of_adamw):
                if _is_loaded(entry):
                    ignored.append(entry.name)
                else:
                    needed["master"] = entry.parameter
            _check(needed, saved, entry.name)
            loaded[entry.parameter] = state, saved
    loaded_options = [*map(_options_of, saved_groups)]
    for index, (group, given) in enumerate(zip(groups, loaded_options, strict=True)):
        options.check({**group, **given}, index)
    for group, given in zip(groups, loaded_options, strict=True):
        group.update(given)
        for parameter in group["params"]:
            optimizer.state.pop(parameter, None)  # without any it begins anew
    optimizer.state.update({parameter: state for parameter, (state, _) in loaded.items()})
    for entry in parameters.entries(optimizer):  # rounded as the loaded options say
        if entry.parameter in loaded:
            _copy(entry, *loaded[entry.parameter], of_adamw)
    if ignored:
        warnings.warn(
            f"the optimizer's state dict, of an older version, has masters of {len(ignored)} "
            f"weights ({ignored[0]} the first), which are left out: the model's state dict has "
            "set the values of these weights",
            stacklevel=3,
        )
    for hook in optimizer._optimizer_load_state_dict_post_hooks.values():
        hook(optimizer)


def _has_own_master(entry: parameters.Entry, saved: dict, of_adamw: bool) -> bool:
    """Whether a state has the master of a weight that is its own: those of older checkpoints do,
    and the model's state dict has the same value.
    """
    is_own = isinstance(dtensors.local_of(entry.parameter), MasterWeight)
    return is_own and "master" in saved and not of_adamw


def _is_loaded(entry: parameters.Entry) -> bool:
    """Whether the model's state dict has set the value of a weight that is its own master."""
    return dtensors.local_of(entry.parameter).cell.is_loaded


def _check(state: dict, saved: dict, name: str) -> None:
    """ValueError unless a parameter's state can be that which was saved. A history may be missing:
    it begins anew.
    """
    for key, value in state.items():
        other = saved.get(key)
        if other is None and key != "history":
            raise ValueError(
                f"{name}: the state dict has no {key!r}, only {sorted(map(str, saved))}. It must "
                "come from FusedAdam with such a parameter, or with of_adamw=True, which leaves "
                "the masters as they are, from any or from torch.optim.AdamW or Adam"
            )
        if key == "step" or other is None:
            continue
        is_sharded = [isinstance(one, dtensors.DTensor) for one in (value, other)]
        if isinstance(dtensors.local_of(value), MasterWeight) and is_sharded == [True, False]:
            raise ValueError(
                f"{name}: the state dict, of an older version, has the whole master, and the "
                "weight is sharded. Load the model's state dict first: it has the value"
            )
        if len(set(is_sharded)) > 1 or tuple(value.shape) != tuple(other.shape):
            raise ValueError(
                f"{name}: {key} has shape {tuple(other.shape)} in the state dict "
                f"({type(other).__name__}), {tuple(value.shape)} in the optimizer "
                f"({type(value).__name__}). torch.distributed.checkpoint.state_dict."
                "set_optimizer_state_dict distributes a full state dict"
            )


def _options_of(group: dict) -> dict:
    """The options that a saved group brings."""
    left = ("params", _DECOUPLED)
    loaded = {key: copy.deepcopy(value) for key, value in group.items() if key not in left}
    return loaded | ({"adamw": bool(group[_DECOUPLED])} if _DECOUPLED in group else {})


@torch.no_grad()
def _copy(entry: parameters.Entry, state: dict, saved: dict, of_adamw: bool) -> None:
    """Copies values into a parameter's state, and makes its value from that: the bytes are those
    that the last step left.
    """
    for key, value in state.items():
        if of_adamw and key in _NOT_ADAMWS:
            continue
        known = saved.get(key, 0)  # 0: no history yet, as after a write
        fill = value.copy_ if isinstance(known, torch.Tensor) else value.fill_
        fill(known)
    if _has_own_master(entry, saved, of_adamw) and not _is_loaded(entry):
        dtensors.local_of(entry.parameter).copy_(dtensors.local_of(saved["master"]))
    local, master = map(dtensors.local_of, (entry.parameter, state.get("master")))
    if of_adamw or entry.store is None:
        if not of_adamw and master is not None:
            local.copy_(master)
        return
    history = state["history"].clone() if "history" in state else None
    if master is not None:
        local.write(master)
    elif not entry.store.is_stale:  # the bytes are those of its value
        return
    step = int(state["step"])
    stochastic = entry.seed is not None and step > 0  # before the first step, all is to nearest
    first = dtensors.first_element(entry.parameter) if stochastic else 0
    rng_key = RngKey(entry.seed, step, first) if stochastic else None
    local._store.resume(history, rng_key)
