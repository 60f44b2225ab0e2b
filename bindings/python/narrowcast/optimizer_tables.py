"""The tables of FusedAdam's launches: one for each device and format, and process group where
amaxes are reduced.
"""

from __future__ import annotations

import torch

from narrowcast import _C, casting, dtensors
from narrowcast.optimizer_state import own_matrix
from narrowcast.tensor import QuantizedTensor


class Tables:
    """Made from (parameter, state, name, group index) of every parameter of an optimizer."""

    def __init__(self, entries):
        self._tables: dict[tuple, _C.AdamTable] = {}
        self._matrices: dict = {}  # process group of their shards, or None -> quantized matrices
        self._marks = -1
        for parameter, state, name, group in entries:
            adam = _C.AdamState(
                state["step"],
                *(dtensors.local_of(state[moment]) for moment in ("exp_avg", "exp_avg_sq")),
            )
            if isinstance(dtensors.local_of(parameter), QuantizedTensor):
                self._add_quantized(parameter, state, name, group, adam)
            else:
                self._add_plain(parameter, state, name, group, adam)
        self._launches = []  # table, stream's device, its part of the amaxes or None
        self._reductions = []  # part of the amaxes, process group
        self._amaxes = []  # all of a device
        self._plan_launches()

    def _table(self, device, format=None, process_group=None) -> _C.AdamTable:
        key = (device, process_group, format)
        if key not in self._tables:
            self._tables[key] = _C.AdamTable(None if format is None else format.plugin, device)
        return self._tables[key]

    def _add_plain(self, parameter, state, name, group, adam) -> None:
        local = dtensors.local_of(parameter)
        master = dtensors.local_of(state["master"]) if "master" in state else None
        self._table(local.device).add_plain(parameter, name, group, adam, master)

    def _add_quantized(self, parameter, state, name, group, adam) -> None:
        local = dtensors.local_of(parameter)
        own_matrix(local)
        matrix = local._matrix
        if matrix.master.data_ptr() != dtensors.local_of(state["master"]).data_ptr():
            state["master"] = dtensors.like(parameter, local.master)  # FSDP2 has copied the shard
        process_group = dtensors.shard_group(parameter)
        self._matrices.setdefault(process_group, []).append(matrix)
        description = (matrix.rows, matrix.columns, matrix.master, matrix.buffers, matrix.amax)
        table = self._table(
            matrix.device, matrix.format, process_group if matrix.format.tensor_amax else None
        )
        table.add_quantized(parameter, name, group, adam, matrix, description)

    def _plan_launches(self) -> None:
        """Lays the amaxes of a device out so that those of one process group lie together."""
        order = {process_group: index for index, process_group in enumerate(self._matrices)}
        for device in {device for device, _, _ in self._tables}:
            spanning = []
            for (where, process_group, format), table in self._tables.items():
                if where == device and format is not None and format.tensor_amax:
                    spanning.append((order[process_group], process_group, table))
                elif where == device:
                    self._launches.append((table, device, None))
            spanning.sort(
                key=lambda entry: entry[0]
            )  # stable: formats in the order of the parameters, on all ranks
            amaxes = torch.zeros(
                sum(len(table) for _, _, table in spanning), dtype=torch.float32, device=device
            )
            self._amaxes.append(amaxes)
            begins: dict = {}
            end = 0
            for _, process_group, table in spanning:
                begin, end = end, end + len(table)
                self._launches.append((table, device, amaxes[begin:end]))
                begins[process_group] = (begins.get(process_group, (begin, 0))[0], end)
            self._reductions += [
                (amaxes[begin:end], process_group)
                for process_group, (begin, end) in begins.items()
                if process_group is not None
            ]

    def refresh(self) -> None:
        """Makes the bytes of stale weights, with one reduction for all of a process group."""
        if casting.stale_marks() == self._marks:
            return
        for process_group, matrices in self._matrices.items():
            stale = [matrix for matrix in matrices if matrix.stale]
            if stale:
                casting.cast_masters(stale, process_group)
        self._marks = casting.stale_marks()

    def prepare(self, options: list[_C.AdamOptions], inverse_scale: float | None) -> bool:
        """Reads and checks all gradients and changes nothing. False if a parameter's memory is no
        longer where the tables say.
        """
        return all(table.prepare(options, inverse_scale) for table, _, _ in self._launches)

    def run(self) -> None:
        """The step that was prepared."""
        for amaxes in self._amaxes:
            amaxes.zero_()
        for table, device, amaxes in self._launches:
            table.update(amaxes, casting.stream_of(device))
        for amaxes, process_group in self._reductions:
            casting.reduce_over([amaxes], process_group)
        for table, device, amaxes in self._launches:
            if amaxes is not None:
                table.cast(amaxes, casting.stream_of(device))
            table.commit()
