"""The state of FusedAdam: made with the optimizer, saved by torch's own means, loaded without a
cast.
"""

import copy
from itertools import chain

import torch

from narrowcast.tensor import LOGICAL_DTYPES, QuantizedTensor, dtensors
from narrowcast.tensor.master import Draw, Master, Saved


def make_state(
    parameter: torch.Tensor, name: str, state_dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """step, exp_avg, exp_avg_sq; master where the parameter is not its own; history where scaling
    is delayed. TypeError for a dtype that Adam cannot update.
    """
    local = dtensors.local_of(parameter)
    if parameter.dtype not in LOGICAL_DTYPES:
        raise TypeError(
            f"{name} is {parameter.dtype}: FusedAdam updates float32, bfloat16 and float16"
        )
    if local.device.type == "meta":
        raise ValueError(
            f"{name} is on the meta device: materialise the model (to_empty, and its "
            "initialisation) before the optimizer"
        )
    if not isinstance(local, QuantizedTensor) and not local.is_contiguous():
        raise ValueError(
            f"{name} is not contiguous (strides {local.stride()}), and FusedAdam updates runs of "
            "memory: call model.to(memory_format=torch.contiguous_format), or give the parameter a "
            "contiguous copy of its value, before the optimizer is made"
        )
    state = {"step": torch.zeros((), dtype=torch.float32, device="cpu")}
    if isinstance(local, QuantizedTensor):
        make_updatable(local)
        state["master"] = dtensors.like(parameter, local.master)
        if local._store.bytes.history is not None:
            state["history"] = local._store.bytes.history
    elif parameter.dtype != torch.float32:
        state["master"] = dtensors.like(parameter, local.detach().to(torch.float32).contiguous())
    for moment in ("exp_avg", "exp_avg_sq"):
        zeros = torch.zeros(local.shape, dtype=state_dtype, device=local.device)
        state[moment] = dtensors.like(parameter, zeros)
    return state


def make_updatable(local: QuantizedTensor) -> None:
    """Sees to it that a parameter is a whole matrix of its own, with a master. Kernels write whole
    buffers; the shard of a rank with fewer rows than the others is a view of a padded one.
    """
    local.detach_from_whole()
    store = local._store
    if store.master is None:
        store.master = Master(store.high_precision(store.whole))


def load_state_dict(optimizer, state_dict: dict, check_group) -> None:
    """torch.optim.Optimizer.load_state_dict, but values are copied into the present state: the base
    class would cast it to the parameters' dtypes. `check_group(group, index)` raises ValueError or
    TypeError for options that make no sense.
    """
    state_dict = state_dict.copy()
    for hook in optimizer._optimizer_load_state_dict_pre_hooks.values():
        result = hook(optimizer, state_dict)
        state_dict = state_dict if result is None else result
    pairs = _matching(optimizer, state_dict)
    for parameter, name, saved in pairs:
        _check(optimizer.state[parameter], saved, name)
        _check_history(saved, name)
    saved_options = [
        {key: copy.deepcopy(value) for key, value in saved_group.items() if key != "params"}
        for saved_group in state_dict["param_groups"]
    ]
    pairs_of_groups = list(zip(optimizer.param_groups, saved_options, strict=True))
    for index, (group, saved_group) in enumerate(pairs_of_groups):
        check_group({**group, **saved_group}, index)
    for group, saved_group in pairs_of_groups:
        group.update(saved_group)
    seeds = {entry.parameter: entry.seed for entry in optimizer.entries()}
    with torch.no_grad():
        for parameter, _, saved in pairs:
            for key, value in optimizer.state[parameter].items():
                fill = value.copy_ if isinstance(saved[key], torch.Tensor) else value.fill_
                fill(saved[key])
            _settle(parameter, optimizer.state[parameter], seeds[parameter])
    for hook in optimizer._optimizer_load_state_dict_post_hooks.values():
        hook(optimizer)


def _matching(optimizer, state_dict):
    """Parameters with their names and their saved state. ValueError if groups or parameters do not
    match.
    """
    saved_groups = state_dict["param_groups"]
    sizes = [len(group["params"]) for group in optimizer.param_groups]
    saved_sizes = [len(group["params"]) for group in saved_groups]
    if sizes != saved_sizes:
        raise ValueError(
            f"the state dict has groups of {saved_sizes} parameters, the optimizer of {sizes}"
        )
    keys = chain.from_iterable(group["params"] for group in saved_groups)
    pairs = []
    for key, (_, parameter, name) in zip(keys, optimizer.named(), strict=True):
        saved = state_dict["state"].get(key)
        if saved is not None:
            pairs.append((parameter, name, saved))
        elif parameter.requires_grad:  # get_optimizer_state_dict leaves frozen parameters out
            raise ValueError(f"the state dict has no state for {name}")
    return pairs


def _check(state: dict, saved: dict, name: str) -> None:
    for key, value in state.items():
        if key not in saved:
            raise ValueError(
                f"{name}: the state dict has no {key!r}, only {sorted(saved)}. It must come from "
                "FusedAdam"
            )
        other = saved[key]
        if key == "step":
            _check_step(other, name)
            continue
        if not isinstance(other, torch.Tensor):
            raise TypeError(f"{name}: {key} is a {type(other).__name__} in the state dict")
        if other.is_meta:
            raise ValueError(
                f"{name}: {key} is on the meta device in the state dict: it has no value"
            )
        if isinstance(value, dtensors.DTensor) != isinstance(other, dtensors.DTensor):
            raise ValueError(
                f"{name}: {key} is a {type(other).__name__} in the state dict and a "
                f"{type(value).__name__} in the optimizer. "
                "torch.distributed.checkpoint.state_dict.set_optimizer_state_dict distributes a "
                "full state dict"
            )
        if tuple(other.shape) != tuple(value.shape):
            raise ValueError(
                f"{name}: {key} has shape {tuple(other.shape)} in the state dict, "
                f"{tuple(value.shape)} in the optimizer"
            )
        if other.dtype != value.dtype and not (
            other.dtype == torch.bfloat16 and value.dtype == torch.float32
        ):
            raise ValueError(
                f"{name}: {key} is {other.dtype} in the state dict and {value.dtype} in the "
                "optimizer, which would round it. Make the optimizer with "
                f"state_dtype={other.dtype}"
            )


def _check_step(step, name: str) -> None:
    if isinstance(step, torch.Tensor) and (step.is_meta or step.numel() != 1):
        raise ValueError(
            f"{name}: step has shape {tuple(step.shape)} on {step.device} in the state dict; it is "
            "one number"
        )
    number = float(step)
    if not (number >= 0 and number.is_integer()):
        raise ValueError(f"{name}: step is {number} in the state dict; steps are counted from 0")


def _check_history(saved: dict, name: str) -> None:
    """Multipliers and amaxes of delayed scaling: no cast makes one that is negative or NaN."""
    history = saved.get("history")
    if isinstance(history, torch.Tensor) and not bool((history >= 0).all()):
        raise ValueError(f"{name}: history has negative numbers or NaN in the state dict")


def _settle(parameter: torch.Tensor, state: dict, seed: int | None) -> None:
    """What follows from a loaded state: bytes as those of the step before it was saved."""
    local = dtensors.local_of(parameter)
    master = dtensors.local_of(state["master"]) if "master" in state else None
    if isinstance(local, QuantizedTensor):
        history = state["history"].clone() if "history" in state else None
        local.write(master)
        store, step = local._store, int(state["step"])
        if history is not None:
            if history[0] == 0:  # saved after a write, before its cast
                return
            store.bytes.history.copy_(history)
        stochastic = seed is not None and step > 0  # before the first step, all is to nearest
        draw = Draw(seed, step, dtensors.first_element(parameter)) if stochastic else None
        store.master.saved = Saved(draw)
    elif master is not None:
        local.copy_(master)
