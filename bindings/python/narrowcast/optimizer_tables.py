"""The launches of FusedAdam: one for each device and format, and process group where amaxes are
reduced.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from narrowcast import _C, casting, dtensors
from narrowcast.optimizer_state import own_matrix
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


class Tables:
    """Made from (parameter, state, name, index of its group) of every parameter of an optimizer."""

    def __init__(self, entries):
        self._by_key: dict[tuple, Launch] = {}
        self._matrices: dict = {}  # by the process group of their shards, or None
        self._marks = -1
        for parameter, state, name, index in entries:
            moments = (dtensors.local_of(state[moment]) for moment in ("exp_avg", "exp_avg_sq"))
            adam = _C.AdamState(state["step"], *moments)
            if isinstance(dtensors.local_of(parameter), QuantizedTensor):
                self._add_quantized(parameter, state, name, index, adam)
            else:
                self._add_plain(parameter, state, name, index, adam)
        self._launches = list(self._by_key.values())
        self._amaxes: list[torch.Tensor] = []  # all of a device
        self._reductions: list[tuple[torch.Tensor, Any]] = []  # a part of them, its process group
        for device in dict.fromkeys(launch.device for launch in self._launches if launch.spans):
            self._lay_out_amaxes(device)

    def _add_plain(self, parameter, state, name, index, adam) -> None:
        local = dtensors.local_of(parameter)
        master = dtensors.local_of(state["master"]) if "master" in state else None
        self._launch(local.device).table.add_plain(parameter, name, index, adam, master)

    def _add_quantized(self, parameter, state, name, index, adam) -> None:
        local = dtensors.local_of(parameter)
        own_matrix(local)
        matrix = local._matrix
        if matrix.master.data_ptr() != dtensors.local_of(state["master"]).data_ptr():
            state["master"] = dtensors.like(parameter, local.master)  # FSDP2 has copied the shard
        group = dtensors.shard_group(parameter)
        self._matrices.setdefault(group, []).append(matrix)
        described = (matrix.rows, matrix.columns, matrix.master, matrix.buffers, matrix.amax)
        launch = self._launch(matrix.device, matrix.format, group)
        launch.table.add_quantized(parameter, name, index, adam, matrix, described)

    def _launch(self, device, format=None, group=None) -> Launch:
        spans = format is not None and format.tensor_amax
        group = group if spans else None
        key = (device, format, group)
        if key not in self._by_key:
            table = _C.AdamTable(None if format is None else format.plugin, device)
            self._by_key[key] = Launch(table, device, spans, group)
        return self._by_key[key]

    def _lay_out_amaxes(self, device: torch.device) -> None:
        """Lets the amaxes of one process group lie together, in one order on all ranks: that of the
        parameters.
        """
        spanning = [one for one in self._launches if one.spans and one.device == device]
        amaxes = torch.zeros(sum(len(one.table) for one in spanning), device=device)
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
                launch.table.cast(launch.amaxes, casting.stream_of(launch.device))
            launch.table.commit()
