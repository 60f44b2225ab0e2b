"""bfloat16 and float16 parameters, whose masters are in FusedAdam's state: what somebody else
writes to one (a load of the model's state dict, a clamp, an initialization) is its new value, and
becomes its master's.
"""

import torch

from narrowcast.optimizer.entry import Entry
from narrowcast.tensor import QuantizedTensor, dtensors


class NarrowParameters:
    """Those of an optimizer, and its masters as they were last seen: one that has changed since is
    the state's new value, whatever its parameter is. Of parameters it is enough to know that they
    may have changed. A write through `parameter.data` says so to nobody.
    """

    def __init__(self):
        self._entries: list[Entry] = []
        self._versions: list[int] = []
        self._masters: dict[torch.Tensor, tuple[int, int]] = {}

    def lay_out(self, entries: list[Entry]) -> None:
        """`entries`: of all the optimizer's parameters, whose memory may be another one since."""
        for entry in entries:
            self._hand_over(entry.parameter, entry.state)
        self._entries = [one for one in entries if _is_narrow(one.parameter, one.state)]
        self._follow()

    def follow(self) -> None:
        """Takes up what has been written since the last step."""
        if self._present() != self._versions:
            self._follow()

    def note(self) -> None:
        """After a step, which has written too."""
        self._versions = self._present()

    def know(self, parameter: torch.Tensor, state: dict) -> None:
        """The master is now what its parameter goes on with."""
        if _is_narrow(parameter, state):
            self._masters[parameter] = _seen(state)

    def take_up(self, parameter: torch.Tensor, state: dict) -> None:
        """The parameter's value becomes its master's, wherever that is not what it was made of."""
        if not _is_narrow(parameter, state) or self._masters.get(parameter) != _seen(state):
            return
        value, master = map(dtensors.local_of, (parameter.detach(), state["master"]))
        with torch.no_grad():
            differs = master.to(value.dtype) != value
            master.copy_(torch.where(differs, value.to(master.dtype), master))
        self.know(parameter, state)

    def _hand_over(self, parameter: torch.Tensor, state: dict) -> None:
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

    def _follow(self) -> None:
        for entry in self._entries:
            self.take_up(entry.parameter, entry.state)
            self.know(entry.parameter, entry.state)
        self.note()

    def _present(self) -> list[int]:
        """A DTensor counts the writes to it, and its local part those to that."""
        every = (one.parameter for one in self._entries)
        return [one._version + dtensors.local_of(one)._version for one in every]


def _is_narrow(parameter: torch.Tensor, state: dict) -> bool:
    """Whether it has a master apart; what else a user has put there, the next step names."""
    local, master = dtensors.local_of(parameter), state.get("master")
    if isinstance(local, QuantizedTensor) or not isinstance(master, torch.Tensor):
        return False
    return dtensors.local_of(master).shape == local.shape


def _seen(state: dict) -> tuple[int, int]:
    master = dtensors.local_of(state["master"])
    return master.data_ptr(), master._version
