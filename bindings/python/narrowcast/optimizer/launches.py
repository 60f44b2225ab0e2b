"""The launches of FusedAdam: one for each device and format, and process group where amaxes are
reduced.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from narrowcast import _C
from narrowcast.fsdp import agreement, dtensors
from narrowcast.optimizer.state import make_updatable
from narrowcast.tensor import QuantizedTensor, casting
from narrowcast.tensor.store import Store


@dataclasses.dataclass
class Launch:
    """The parameters that one launch a pass updates. `amaxes`: one float a parameter, in formats
    with a scale that spans the tensor; `group`: over which they are reduced.
    """

    table: _C.AdamTable
    device: torch.device
    spans: bool
    group: Any
    amaxes: torch.Tensor | None = None


class Entry(NamedTuple):
    """A parameter of an optimizer. `seed`: of its stochastic rounding; None: to nearest."""

    parameter: torch.Tensor
    state: dict[str, torch.Tensor]
    name: str
    group: int  # its index
    seed: int | None


class Tables:
    """Made from all parameters of an optimizer. `masters`: those that the state had when the
    optimizer last looked, by parameter; brought up to date here.
    """

    def __init__(self, entries: Iterable[Entry], masters: dict[torch.Tensor, torch.Tensor]):
        self._by_key: dict[tuple, Launch] = {}
        self._masters = masters
        self._quantized: list[tuple[torch.Tensor, Store]] = []
        self._delayed: list[tuple[Store, Any]] = []  # with the process group of their shards
        self._agreements = agreement.Agreements()
        self._groups: dict[Any, None] = {}
        for entry in entries:
            self._add(entry)
        self._launches = list(self._by_key.values())
        self._amaxes: list[torch.Tensor] = []  # all of a device
        self._reductions: list[tuple[torch.Tensor, Any]] = []  # a part of them, its process group
        for device in dict.fromkeys(launch.device for launch in self._launches if launch.spans):
            self._lay_out_amaxes(device)

    def _add(self, entry: Entry) -> None:
        local = dtensors.local_of(entry.parameter)
        if not isinstance(local, QuantizedTensor):
            table = self._launch(local.device).table
            table.add(entry.parameter, entry.name, entry.group, entry.state, 0, 0)
            return
        make_updatable(local)
        self._settle_master(entry, local)
        store = local._store
        if store.bytes.history is not None:
            entry.state["history"] = store.bytes.history
        group = dtensors.shard_group(entry.parameter)
        self._groups[group] = None
        self._quantized.append((entry.parameter, store))
        if store.format.is_delayed:
            self._delayed.append((store, group))
        stochastic = entry.seed is not None
        table = self._launch(local.device, store.format, group, stochastic).table
        draw = (entry.seed, dtensors.first_element(entry.parameter)) if stochastic else (0, 0)
        table.add(entry.parameter, entry.name, entry.group, entry.state, *draw)

    def _settle_master(self, entry: Entry, local: QuantizedTensor) -> None:
        """The state's master and the weight's are one tensor. Where they differ, either FSDP2 has
        copied the shard, or the user has put another tensor into the state, whose value it then is.
        """
        state, value = entry.state, local._store.master.value
        if value.numel() != local.numel():
            raise ValueError(
                f"{entry.name}: state master has shape {tuple(value.shape)}, the parameter "
                f"{tuple(local.shape)}"
            )
        given = state.get("master")
        theirs = value if given is None else dtensors.local_of(given)  # C++ names what is missing
        same = isinstance(theirs, torch.Tensor) and theirs.data_ptr() == value.data_ptr()
        if not same or theirs.shape != local.shape or theirs.dtype != value.dtype:
            if self._masters.get(entry.parameter, given) is not given:
                _check_master(entry, theirs, local)
                local.write(theirs)
            state["master"] = dtensors.like(entry.parameter, local.master)
        if given is not None:
            self._masters[entry.parameter] = state["master"]

    def _launch(self, device, format=None, group=None, stochastic=False) -> Launch:
        spans = format is not None and format.tensor_amax
        group = group if spans else None
        key = (device, format, group, stochastic)
        if key not in self._by_key:
            table = _C.AdamTable(None if format is None else format.plugin, device, stochastic)
            self._by_key[key] = Launch(table, device, spans, group)
        return self._by_key[key]

    def _lay_out_amaxes(self, device: torch.device) -> None:
        """Lets the amaxes of one process group lie together, in one order on all ranks: that of the
        parameters.
        """
        spanning = [one for one in self._launches if one.spans and one.device == device]
        count = sum(len(one.table) for one in spanning)
        amaxes = torch.zeros(count, dtype=torch.float32, device=device)
        end = 0
        for group in self._groups:
            begin = end
            for launch in (one for one in spanning if one.group is group):
                launch.amaxes = amaxes[end : end + len(launch.table)]
                end += len(launch.table)
            if group is not None and end > begin:
                self._reductions.append((amaxes[begin:end], group))
        self._amaxes.append(amaxes)

    def prepare(self, options: list[_C.AdamOptions], inverse_scale: float | None) -> bool:
        """Reads and checks all gradients and changes nothing. False if a parameter's memory or
        state is no longer what the tables say.
        """
        return all(launch.table.prepare(options, inverse_scale) for launch in self._launches)

    def refresh(self) -> None:
        """Makes stale bytes whose history the update goes on with; all others it makes itself."""
        self._agreements.make_bytes(
            [store for store, _ in self._delayed], lambda: [group for _, group in self._delayed]
        )

    def run(self) -> None:
        """The step that was prepared."""
        for amaxes in self._amaxes:
            amaxes.zero_()
        for launch in self._launches:
            launch.table.update(launch.amaxes)
        try:
            for amaxes, group in self._reductions:
                casting.reduce_over(amaxes, group)
        except BaseException:
            # Masters are new. Their bytes can be made at the next gather or step.
            self._commit()
            for parameter, store in self._quantized:
                if store.spans_shards and parameter.grad is not None:
                    store.mark_stale(store.rows)
            raise
        for launch in self._launches:
            if launch.spans:
                launch.table.finish(launch.amaxes)
        # Few are stale, and asking a tensor of a class of ours for its gradient is slow.
        for parameter, store in self._quantized:
            if store.is_stale and parameter.grad is not None:
                store.master.settle()
        self._commit()

    def _commit(self) -> None:
        for launch in self._launches:
            launch.table.commit()


def _check_master(entry: Entry, given, local: QuantizedTensor) -> None:
    """TypeError or ValueError unless what a user has put into the state can be a master."""
    if not isinstance(given, torch.Tensor) or given.dtype != torch.float32:
        kind = given.dtype if isinstance(given, torch.Tensor) else type(given).__name__
        raise TypeError(f"{entry.name}: state master is {kind}, not a tensor of float32")
    if given.shape != local.shape or given.device != local.device:
        raise ValueError(
            f"{entry.name}: state master has shape {tuple(given.shape)} on {given.device}, the "
            f"parameter {tuple(local.shape)} on {local.device}"
        )
