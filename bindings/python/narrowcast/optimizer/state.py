"""The state of a fused optimizer: made when a parameter has its first gradient, saved by torch's
own means. A weight of nc.convert is its own master. Those of plain bfloat16 and float16 parameters
are there alone; a step begins with what was written to the parameter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from narrowcast.fsdp import sharding
from narrowcast.master.weight import MasterWeight
from narrowcast.optimizer import options, parameters, residuals, state_formats
from narrowcast.tensor import QuantizedTensor, dtensors

if TYPE_CHECKING:
    from narrowcast.optimizer import FusedOptimizer


def make_state(
    optimizer: FusedOptimizer, parameter: torch.Tensor, group: dict
) -> dict[str, torch.Tensor]:
    """step; what the group's rule keeps, zeros at first; master of a plain bfloat16 or float16
    parameter, residual of a bfloat16 value; history where scaling is delayed. TypeError if bytes
    are all that there is of it, and NotImplementedError if a rule does not update its value.
    """
    local = dtensors.local_of(parameter)
    if isinstance(local, QuantizedTensor):
        raise TypeError(
            f"{local.describe()}: it has no value in float32 that a step could change. "
            "nc.convert(model, format, trainable=True) makes weights that are trained"
        )
    residuals.check(optimizer, parameter, group)
    device = local.device if options.is_capturable(optimizer) else "cpu"
    state = {"step": torch.zeros((), dtype=torch.float32, device=device)}
    if isinstance(local, MasterWeight):
        _share_history(parameter, state)
        state |= residuals.zeros(optimizer, parameter)
    elif parameter.dtype != torch.float32:
        state["master"] = dtensors.like(parameter, local.detach().to(torch.float32).contiguous())
    format = state_formats.format_of(optimizer, parameter)
    for name in optimizer.state_names(group):
        if format is not None:
            state |= state_formats.zeros(format, name, parameter)
        else:
            is_dtype = isinstance(optimizer.state_dtype, torch.dtype)
            dtype = optimizer.state_dtype if is_dtype else torch.float32
            zeros = torch.zeros(local.shape, dtype=dtype, device=local.device)
            state[name] = dtensors.like(parameter, zeros)
    return state


def place_counts(optimizer) -> None:
    """Brings counts of steps where the optimizer counts them, which may have changed."""
    on_gpu = options.is_capturable(optimizer)
    for _, parameter, _ in parameters.named(optimizer.param_groups):
        state = optimizer.state.get(parameter, {})
        step = state.get("step")
        if isinstance(step, torch.Tensor) and not step.is_meta:
            state["step"] = step.to(dtensors.local_of(parameter).device if on_gpu else "cpu")


def share_histories(optimizer) -> None:
    """Makes the histories in the state the weights' own, where FSDP2 has copied shards since. Those
    of a loaded state dict wait for the next step.
    """
    for _, parameter, _ in parameters.named(optimizer.param_groups):
        state = optimizer.state.get(parameter)
        if state and isinstance(dtensors.local_of(parameter), MasterWeight):
            _share_history(parameter, state, optimizer.loaded_histories)


def _share_history(parameter: torch.Tensor, state: dict, loaded=()) -> None:
    store = sharding.store_of_weight(parameter)
    if store.bytes.history is not None and parameter not in loaded:
        state["history"] = store.bytes.history
        if store.is_stale:  # the cast begins another one
            state["history"].zero_()


def as_saved(optimizer, state_dict: dict) -> dict:
    """A state dict as torch makes it, with histories that are no memory of the weights'. A
    checkpoint is loaded into the state dicts of model and optimizer at once, in any order, and a
    weight that is written to, even with what the checkpoint has, forgets its history. The first of
    the hooks, so that a user's see that.
    """
    for key, state in state_dict["state"].items():
        if "history" in state:
            # One that a checkpoint is to be loaded into begins anew: that of another format would
            # leave it there, and it belongs to none of its values.
            history = state["history"]
            own = torch.zeros_like(history) if optimizer.is_state_form else history.clone()
            state_dict["state"][key] = {**state, "history": own}
    return state_dict


@torch.no_grad()
def follow_writes(state: dict[torch.Tensor, dict]) -> None:
    """Has masters take over what was written to their parameters, as the next step would."""
    for parameter, entries in state.items():
        if "master" in entries:
            value, master = map(dtensors.local_of, (parameter, entries["master"]))
            differs = master.to(value.dtype) != value
            master.copy_(torch.where(differs, value.to(master.dtype), master))
