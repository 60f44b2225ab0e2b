"""The state of FusedAdam: made with the optimizer, saved by torch's own means, loaded without a
cast.
"""

import copy

import torch

from narrowcast.optimizer import saved_state
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


def follow_masters(optimizer, masters: dict[torch.Tensor, torch.Tensor]) -> None:
    """The state's masters and histories are the weights' own where FSDP2 has copied shards since: a
    short one is copied at every load of the model's state dict, and gets bytes of its own when it
    is cast alone. `masters`: those that the optimizer put into the state; another tensor is a
    user's, who wants the weight to have its value.
    """
    for _, parameter, _ in optimizer.named():
        local, state = dtensors.local_of(parameter), optimizer.state.get(parameter, {})
        if isinstance(local, QuantizedTensor) and "history" in state:
            state["history"] = local._store.bytes.history
        own = isinstance(local, QuantizedTensor) and state.get("master") is masters.get(parameter)
        if not own or local.master is None or "master" not in state:
            continue
        if dtensors.local_of(state["master"]).data_ptr() != local.master.data_ptr():
            state["master"] = masters[parameter] = dtensors.like(parameter, local.master)


def with_own_histories(state_dict: dict) -> dict:
    """A state dict whose histories are no memory of the weights': a checkpoint is loaded into the
    state dicts of model and optimizer at once, in any order, and a weight that is written to, even
    with what the checkpoint has, forgets its history.
    """
    for key, state in state_dict["state"].items():
        if "history" in state:
            state_dict["state"][key] = {**state, "history": state["history"].clone()}
    return state_dict


def load_state_dict(optimizer, state_dict: dict, check_group) -> None:
    """torch.optim.Optimizer.load_state_dict, but values are copied into the present state: the base
    class would cast it to the parameters' dtypes. All is checked before anything changes.
    `check_group(group, index)` raises ValueError or TypeError for options that make no sense.
    """
    saved_state.check_type("the state dict", state_dict, dict)
    state_dict = state_dict.copy()
    for hook in optimizer._optimizer_load_state_dict_pre_hooks.values():
        result = hook(optimizer, state_dict)
        state_dict = state_dict if result is None else result
    pairs = saved_state.matching(optimizer, state_dict)
    for parameter, name, saved in pairs:
        saved_state.check(optimizer.state[parameter], saved, name)
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
                store.mark_stale(store.used)
                return
            store.bytes.history.copy_(history)
        stochastic = seed is not None and step > 0  # before the first step, all is to nearest
        draw = Draw(seed, step, dtensors.first_element(parameter)) if stochastic else None
        store.master.saved = Saved(draw)
    elif master is not None:
        local.copy_(master)
