"""The launches of FusedAdam: one for each device and format, and process group where amaxes are
reduced.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from narrowcast import _C
from narrowcast.fsdp import agreement
from narrowcast.optimizer.state import make_updatable
from narrowcast.registry import Format
from narrowcast.tensor import QuantizedTensor, casting, dtensors
from narrowcast.tensor.store import Store


class Key(NamedTuple):
    """What the parameters of one launch have in common. `format`: None of plain ones; `group`: over
    which their amaxes are reduced.
    """

    device: torch.device
    format: Format | None = None
    group: Any = None
    stochastic: bool = False

    @property
    def spans(self) -> bool:
        """Whether a scale spans the tensor."""
        return self.format is not None and self.format.tensor_amax


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
        self._tables: dict[Key, _C.AdamTable] = {}
        self._masters = masters
        self._quantized: list[tuple[torch.Tensor, Store]] = []
        self._delayed: list[tuple[Store, Any]] = []  # with the process group of their shards
        self._agreements = agreement.Agreements()
        for entry in entries:
            self._add(entry)
        self._amaxes: dict[Key, torch.Tensor] = {}  # one float a parameter, where a scale spans it
        self._reductions: list[tuple[torch.Tensor, Any]] = []  # all of a process group
        self._lay_out_amaxes()

    def _add(self, entry: Entry) -> None:
        local = dtensors.local_of(entry.parameter)
        if not isinstance(local, QuantizedTensor):
            table = self._table(Key(local.device))
            table.add(entry.parameter, entry.name, entry.group, entry.state, 0, 0)
            return
        make_updatable(local)
        self._settle_master(entry, local)
        store = local._store
        if store.bytes.history is not None:
            entry.state["history"] = store.bytes.history
        group = dtensors.shard_group(entry.parameter)
        self._quantized.append((entry.parameter, store))
        if store.format.is_delayed:
            self._delayed.append((store, group))
        stochastic = entry.seed is not None
        shared = group if store.format.tensor_amax else None
        table = self._table(Key(local.device, store.format, shared, stochastic))
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

    def _table(self, key: Key) -> _C.AdamTable:
        if key not in self._tables:
            plugin = None if key.format is None else key.format.plugin
            self._tables[key] = _C.AdamTable(plugin, key.device, key.stochastic)
        return self._tables[key]

    def _lay_out_amaxes(self) -> None:
        """Lets the amaxes of one process group lie together, in one order on all ranks: that of the
        parameters.
        """
        together: dict[tuple, list[Key]] = {}
        for key in self._tables:
            if key.spans:
                together.setdefault((key.device, key.group), []).append(key)
        for (device, group), keys in together.items():
            counts = [len(self._tables[key]) for key in keys]
            amaxes = torch.zeros(sum(counts), dtype=torch.float32, device=device)
            self._amaxes.update(zip(keys, amaxes.split(counts), strict=True))
            self._reductions.append((amaxes, group))

    def prepare(self, options: list[_C.AdamOptions], grad_scale: float | None) -> bool:
        """Reads and checks all gradients and changes nothing. False if a parameter's memory or
        state is no longer what the tables say.
        """
        return all(table.prepare(options, grad_scale) for table in self._tables.values())

    def run(self) -> None:
        """The step that was prepared. Stale bytes whose history the update goes on with are made
        before; all others it makes itself.
        """
        self._agreements.make_bytes(
            [store for store, _ in self._delayed], lambda: [group for _, group in self._delayed]
        )
        for amaxes, _ in self._reductions:
            amaxes.zero_()
        for key, table in self._tables.items():
            table.update(self._amaxes.get(key))
        try:
            for amaxes, group in self._reductions:
                if group is not None:
                    casting.reduce_over(amaxes, group)
        except BaseException:
            # Masters are new. Their bytes can be made at the next gather or step.
            self._commit()
            for parameter, store in self._quantized:
                if store.spans_shards and parameter.grad is not None:
                    store.mark_stale(store.rows)
            raise
        for key, amaxes in self._amaxes.items():
            self._tables[key].finish(amaxes)
        # Few are stale, and asking a tensor of a class of ours for its gradient is slow.
        for parameter, store in self._quantized:
            if store.is_stale and parameter.grad is not None:
                store.master.settle()
        self._commit()

    def _commit(self) -> None:
        for table in self._tables.values():
            table.commit()


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
