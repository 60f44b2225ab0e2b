"""The state of FusedAdam: made when a parameter has its first gradient, saved by torch's own means.
The masters and histories in it are the weights' own.
"""

from collections.abc import Callable

import torch

from narrowcast.optimizer import members
from narrowcast.tensor import LOGICAL_DTYPES, QuantizedTensor, dtensors


def check_parameter(parameter: torch.Tensor, name: str) -> None:
    """TypeError or ValueError for a parameter that Adam cannot update."""
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


def make_state(
    parameter: torch.Tensor, name: str, state_dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """step, exp_avg, exp_avg_sq; master where the parameter is not its own; history where scaling
    is delayed. TypeError or ValueError for a parameter that Adam cannot update.
    """
    check_parameter(parameter, name)
    local = dtensors.local_of(parameter)
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


def missing(optimizer, is_wanted: Callable[[torch.Tensor], bool]) -> dict[torch.Tensor, dict]:
    """New state of the parameters that have none and are wanted."""
    return {
        parameter: make_state(parameter, name, optimizer.state_dtype)
        for _, parameter, name in members.named(optimizer.param_groups)
        if not optimizer.state.get(parameter) and is_wanted(parameter)
    }


def add(optimizer, made: dict[torch.Tensor, dict]) -> None:
    """Gives it to the optimizer, in the dict that a parameter has, if it has one."""
    for parameter, state in made.items():
        optimizer.state[parameter].update(state)
        if "master" in state:
            optimizer.masters[parameter] = state["master"]
        optimizer.narrow.know(parameter, state)


def has_gradient(parameter: torch.Tensor) -> bool:
    return parameter.grad is not None


def is_trained(parameter: torch.Tensor) -> bool:
    return parameter.requires_grad


def make_whole(parameter: torch.Tensor) -> None:
    """Sees to it that a quantized parameter is a whole matrix of its own: the shard of a rank with
    fewer rows than the others is a view of a padded one. Before anybody takes a state dict of the
    model, for that holds what the shard was then.
    """
    local = dtensors.local_of(parameter)
    if isinstance(local, QuantizedTensor):
        local.detach_from_base()


def make_updatable(local: QuantizedTensor) -> None:
    """The same, with a master: kernels write whole buffers."""
    local.detach_from_base()
    local._store.keep_master()


def follow_masters(optimizer) -> None:
    """The state's masters and histories are the weights' own where FSDP2 has copied shards since: a
    short one is copied at every load of the model's state dict, and gets bytes of its own when it
    is cast alone. A master that the optimizer has not put into the state is a user's, who wants the
    weight to have its value.
    """
    masters = optimizer.masters
    for _, parameter, _ in members.named(optimizer.param_groups):
        local, state = dtensors.local_of(parameter), optimizer.state.get(parameter, {})
        optimizer.narrow.take_up(parameter, state)
        if isinstance(local, QuantizedTensor):
            local._store.mark_if_written()  # a weight that others have written to has no history
            if "history" in state:
                state["history"] = local._store.bytes.history
        own = isinstance(local, QuantizedTensor) and state.get("master") is masters.get(parameter)
        if not own or local.master is None or "master" not in state:
            continue
        if dtensors.local_of(state["master"]).data_ptr() != local.master.data_ptr():
            state["master"] = masters[parameter] = dtensors.like(parameter, local.master)


def as_saved(optimizer, state_dict: dict) -> dict:
    """A state dict as torch makes it, with histories that are no memory of the weights'. A
    checkpoint is loaded into the state dicts of model and optimizer at once, in any order, and a
    weight that is written to, even with what the checkpoint has, forgets its history. The first of
    the hooks, so that a user's see that.
    """
    for key, state in state_dict["state"].items():
        if "history" in state:
            # One that something is to be loaded into begins anew: a checkpoint of another format
            # would leave it there, and it belongs to none of its values.
            is_form, history = optimizer._was_asked, state["history"]
            own = torch.zeros_like(history) if is_form else history.clone()
            state_dict["state"][key] = {**state, "history": own}
    return state_dict
