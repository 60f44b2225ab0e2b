"""The state of FusedAdam: made when a parameter has its first gradient, saved by torch's own means.
The masters and histories in it are the weights' own; the masters of bfloat16 and float16 parameters
are there alone, and take over what is written to these between steps.
"""

from collections.abc import Callable

import torch

from narrowcast import _C
from narrowcast.optimizer import parameters
from narrowcast.optimizer.parameters import Entry
from narrowcast.tensor import LOGICAL_DTYPES, QuantizedTensor, dtensors

# What Adam keeps for each element beside the master, as nc_tensor (runtime/plugin/launch.h) names
# it: zeros at first, of the optimizer's state_dtype.
MOMENTS = ("exp_avg", "exp_avg_sq")


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
        local.detach_from_base()  # kernels write whole buffers
        local._store.keep_master()
        state["master"] = dtensors.like(parameter, local.master)
        if local._store.bytes.history is not None:
            state["history"] = local._store.bytes.history
    elif parameter.dtype != torch.float32:
        state["master"] = dtensors.like(parameter, local.detach().to(torch.float32).contiguous())
    for moment in MOMENTS:
        zeros = torch.zeros(local.shape, dtype=state_dtype, device=local.device)
        state[moment] = dtensors.like(parameter, zeros)
    return state


def missing(optimizer, is_wanted: Callable[[torch.Tensor], bool]) -> dict[torch.Tensor, dict]:
    """New state of the parameters that have none and are wanted."""
    return {
        parameter: make_state(parameter, name, optimizer.state_dtype)
        for _, parameter, name in parameters.named(optimizer.param_groups)
        if not optimizer.state.get(parameter) and is_wanted(parameter)
    }


def add(optimizer, made: dict[torch.Tensor, dict]) -> None:
    """Adds entries to the state of parameters, which may have some already."""
    for parameter, state in made.items():
        optimizer.state[parameter].update(state)
        if "master" in state:
            optimizer.masters[parameter] = state["master"]
        optimizer.low_precision.note_master(parameter, state)


def has_gradient(parameter: torch.Tensor) -> bool:
    return parameter.grad is not None


def is_trained(parameter: torch.Tensor) -> bool:
    return parameter.requires_grad


def follow_masters(optimizer) -> None:
    """Makes the state's masters and histories the weights' own again, where FSDP2 has copied shards
    since: a shard with fewer rows than the others is copied at every load of the model's state
    dict. A master that the optimizer has not put into the state is a user's, and is left alone: the
    next step gives the weight its value.
    """
    masters = optimizer.masters
    for _, parameter, _ in parameters.named(optimizer.param_groups):
        local, state = dtensors.local_of(parameter), optimizer.state.get(parameter, {})
        optimizer.low_precision.sync_master(parameter, state)
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
            is_form, history = optimizer._made_for_dcp, state["history"]
            own = torch.zeros_like(history) if is_form else history.clone()
            state_dict["state"][key] = {**state, "history": own}
    return state_dict


class LowPrecisionParameters:
    """The bfloat16 and float16 parameters of an optimizer, whose masters are in its state. What is
    written to one (a load of the model's state dict, a clamp, an initialization) becomes its
    master's value at the next step. A master that was itself written to since the last step wins.
    A write through `parameter.data` is not seen: torch does not count it.
    """

    def __init__(self):
        self._entries: list[Entry] = []
        self._writes = _C.WriteCounts([])
        self._masters: dict[torch.Tensor, tuple[int, int]] = {}

    def watch(self, entries: list[Entry]) -> None:
        """`entries`: of all the optimizer's parameters, whose memory may be another one since."""
        for entry in entries:
            self._move_to_weight(entry.parameter, entry.state)
        self._entries = [one for one in entries if _has_own_master(one.parameter, one.state)]
        # A DTensor counts the writes to it, and its local part those to that.
        every = [one.parameter for one in self._entries]
        self._writes = _C.WriteCounts([*every, *map(dtensors.local_of, every)])
        self._sync_all()

    def sync_written(self) -> None:
        """Before a step: masters take over what has been written since the last one."""
        if not self._writes.are_same:
            self._sync_all()

    def note_writes(self) -> None:
        """What was written until now is in the masters: after a step, which writes too."""
        self._writes.take()

    def note_master(self, parameter: torch.Tensor, state: dict) -> None:
        """The master, as it is now, was made of the parameter, or the parameter of it."""
        if _has_own_master(parameter, state):
            self._masters[parameter] = _version_of(state)

    def sync_master(self, parameter: torch.Tensor, state: dict) -> None:
        """Has the master take over the elements that are no longer its own, rounded; unless it has
        been written to itself since note_master().
        """
        if not _has_own_master(parameter, state):
            return
        if self._masters.get(parameter) != _version_of(state):
            return
        value, master = map(dtensors.local_of, (parameter.detach(), state["master"]))
        with torch.no_grad():
            differs = master.to(value.dtype) != value
            master.copy_(torch.where(differs, value.to(master.dtype), master))
        self.note_master(parameter, state)

    def _move_to_weight(self, parameter: torch.Tensor, state: dict) -> None:
        """nc.convert makes a weight of a shard, whose master is the shard's value. Where that is
        what the state's was rounded to, the state's is the better one.
        """
        local = dtensors.local_of(parameter)
        if not isinstance(local, QuantizedTensor) or self._masters.pop(parameter, None) is None:
            return
        value, master = local.master, dtensors.local_of(state["master"])
        if value is not None and value.shape == master.shape:
            is_rounded = master.to(parameter.dtype) == value.to(parameter.dtype)
            local.write(torch.where(is_rounded, master, value))

    def _sync_all(self) -> None:
        for entry in self._entries:
            self.sync_master(entry.parameter, entry.state)
            self.note_master(entry.parameter, entry.state)
        self.note_writes()


def _has_own_master(parameter: torch.Tensor, state: dict) -> bool:
    """Whether it has a master apart; what else a user has put there, the next step names."""
    local, master = dtensors.local_of(parameter), state.get("master")
    if isinstance(local, QuantizedTensor) or not isinstance(master, torch.Tensor):
        return False
    return dtensors.local_of(master).shape == local.shape


def _version_of(state: dict) -> tuple[int, int]:
    master = dtensors.local_of(state["master"])
    return master.data_ptr(), master._version
