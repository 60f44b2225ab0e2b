"""The launches of FusedAdam: one for each device and format, and process group where amaxes are
reduced.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from narrowcast import _C, casting, dtensors
from narrowcast.optimizer_state import make_updatable
from narrowcast.tensor import QuantizedTensor


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
    """Made from all parameters of an optimizer."""

    def __init__(self, entries: Iterable[Entry]):
        self._by_key: dict[tuple, Launch] = {}
        self._matrices: dict = {}  # by the process group of their shards, or None
        self._marks = -1
        for entry in entries:
            moments = (dtensors.local_of(entry.state[key]) for key in ("exp_avg", "exp_avg_sq"))
            adam = _C.AdamState(entry.state["step"], *moments)
            if isinstance(dtensors.local_of(entry.parameter), QuantizedTensor):
                self._add_quantized(entry, adam)
            else:
                self._add_plain(entry, adam)
        self._launches = list(self._by_key.values())
        self._amaxes: list[torch.Tensor] = []  # all of a device
        self._reductions: list[tuple[torch.Tensor, Any]] = []  # a part of them, its process group
        for device in dict.fromkeys(launch.device for launch in self._launches if launch.spans):
            self._lay_out_amaxes(device)

    def _add_plain(self, entry: Entry, adam) -> None:
        local = dtensors.local_of(entry.parameter)
        master = dtensors.local_of(entry.state["master"]) if "master" in entry.state else None
        table = self._launch(local.device).table
        table.add_plain(entry.parameter, entry.name, entry.group, adam, master)

    def _add_quantized(self, entry: Entry, adam) -> None:
        parameter = entry.parameter
        local = dtensors.local_of(parameter)
        make_updatable(local)
        matrix = local._matrix
        if matrix.master.data_ptr() != dtensors.local_of(entry.state["master"]).data_ptr():
            entry.state["master"] = dtensors.like(parameter, local.master)  # FSDP2 copied the shard
        if matrix.history is not None:
            entry.state["history"] = matrix.history
        group = dtensors.shard_group(parameter)
        self._matrices.setdefault(group, []).append(matrix)
        stochastic = entry.seed is not None
        table = self._launch(matrix.device, matrix.format, group, stochastic).table
        place = (entry.seed, dtensors.first_element(parameter)) if stochastic else (0, 0)
        described = casting.described(matrix, matrix.master)
        table.add_quantized(parameter, entry.name, entry.group, adam, matrix, described, *place)

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
        for group in self._matrices:
            begin = end
            for launch in (one for one in spanning if one.group is group):
                launch.amaxes = amaxes[end : end + len(launch.table)]
                end += len(launch.table)
            if group is not None and end > begin:
                self._reductions.append((amaxes[begin:end], group))
        self._amaxes.append(amaxes)

    def refresh(self) -> None:
        """Makes the bytes of stale weights, with one reduction for all of a process group."""
        if casting.stale_marks() == self._marks:
            return
        for group, matrices in self._matrices.items():
            stale = [matrix for matrix in matrices if matrix.stale]
            if stale:
                casting.cast_masters(stale, group)
        self._marks = casting.stale_marks()

    def prepare(self, options: list[_C.AdamOptions], inverse_scale: float | None) -> bool:
        """Reads and checks all gradients and changes nothing. False if a parameter's memory is no
        longer where the tables say.
        """
        return all(launch.table.prepare(options, inverse_scale) for launch in self._launches)

    def run(self) -> None:
        """The step that was prepared."""
        for amaxes in self._amaxes:
            amaxes.zero_()
        for launch in self._launches:
            launch.table.update(launch.amaxes, casting.stream_of(launch.device))
        for amaxes, group in self._reductions:
            casting.reduce_over([amaxes], group)
        for launch in self._launches:
            if launch.spans:
                launch.table.finish(launch.amaxes, casting.stream_of(launch.device))
            launch.table.commit()
