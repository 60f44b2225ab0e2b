"""The launches of a fused optimizer: one for each rule, device and format, and process group where
amaxes are reduced.
"""

from itertools import chain
from typing import Any, NamedTuple

import torch
from torch.distributed.tensor import DTensor

from narrowcast import _C
from narrowcast.flat.fusing import StepTable, Updates, index_in
from narrowcast.fsdp import stale, torch_names
from narrowcast.master.weight import MasterWeight
from narrowcast.optimizer.parameters import Entry
from narrowcast.optimizer.step_context import Amp
from narrowcast.ranks import Reduction
from narrowcast.registry import Format
from narrowcast.tensor import dtensors, scale_groups
from narrowcast.tensor.store import Store
from narrowcast.tensor.unaligned import UnalignedStore


class Key(NamedTuple):
    """What the parameters of one launch have in common. `format`: None of plain ones; `group`: over
    which their amaxes are reduced; `values`: the dtype of the masters.
    """

    rule: str
    device: torch.device
    format: Format | None = None
    group: Any = None
    stochastic: bool = False
    values: torch.dtype = torch.float32


def run_step(parts: list[StepTable], reductions: list[Reduction]) -> None:
    """The step that every table has prepared. If a reduction fails, the step is counted, masters
    are new, and the bytes that waited for it are stale: the next gather or step makes them. Those
    of flat shards the next step makes.
    """
    for table, amax, is_reduced in parts:
        table.update(amax)
        if table.spans and not is_reduced:
            table.finish(amax)
    try:
        for reduction in reductions:
            reduction.reduce()
    except BaseException:
        for table, _, is_reduced in parts:
            table.commit(not is_reduced)
        raise
    for table, amax, is_reduced in parts:
        if is_reduced:
            table.finish(amax)
        table.commit(True)


class Tables:
    """Made from all parameters of an optimizer. `flat_updates`, `loaded_histories`: the optimizer's
    own; `counted`: GPUs count the steps.
    """

    def __init__(
        self,
        entries: list[Entry],
        flat_updates: list[Updates],
        loaded_histories: dict[torch.Tensor, torch.Tensor],
        counted: bool,
    ):
        self._counted = counted
        self._tables: dict[Key, _C.UpdateTable] = {}
        self._parameters: dict[Key, list[torch.Tensor]] = {}
        self._stores: dict[Key, list[Store]] = {}  # of quantized ones
        self._weights: list[tuple[torch.Tensor, Store]] = []
        self._delayed: list[tuple[torch.Tensor, Store]] = []
        self._loaded_histories = loaded_histories
        every = [entry.parameter for entry in entries]
        self._redistributed = _redistributed(every)
        sharing: dict[tuple, list[Entry]] = {}  # shards that share blocks with others
        for entry in entries:
            if index_in(flat_updates, entry.parameter) is None:
                self._add(entry, sharing)
        # Where a GPU may skip the step, it leaves all bytes as they are.
        self._continued = stale.shards_of(self._weights if counted else self._delayed)
        self._reductions: list[Reduction] = []
        self._parts = self._lay_out()
        self._updates = [*flat_updates, *(_updates_of(*each) for each in sharing.items())]
        self._parts += chain.from_iterable(one.build(entries, counted) for one in self._updates)
        every = [*self._reductions, *(one.exchange for one in self._updates)]
        self._collective = [one for one in every if one.is_collective]

    def _add(self, entry: Entry, sharing: dict[tuple, list[Entry]]) -> None:
        local, store = dtensors.local_of(entry.parameter), entry.store
        device = local.device
        if store is None:
            self._enter(Key(entry.rule, device), entry, (0, 0))
            return
        if isinstance(local, MasterWeight) and local.cell.is_replaced:
            raise RuntimeError(
                f"{entry.name}: fully_shard has replaced this weight by its shards since the "
                "optimizer was made, so a step would leave the model as it is. Make the optimizer "
                "after fully_shard"
            )
        values = torch.float32
        if store.master is not None:
            self._weights.append((entry.parameter, store))
            values = store.master.dtype
        group = dtensors.shard_group(entry.parameter)
        stochastic, is_drawn = entry.stochastic, entry.seed is not None
        draw = (entry.seed, dtensors.first_element(entry.parameter)) if is_drawn else (0, 0)
        if isinstance(store, UnalignedStore):
            if store.master is not None:
                part = store.shard.part, store.shard.parts
                key = entry.rule, device, group, stochastic, values, part
                sharing.setdefault(key, []).append(entry)
            return
        if store.format.is_delayed:
            self._delayed.append((entry.parameter, store))
        shared = group if store.format.tensor_amax else None
        key = Key(entry.rule, device, store.format, shared, stochastic, values)
        self._enter(key, entry, draw)

    def _enter(self, key: Key, entry: Entry, draw: tuple[int, int]) -> None:
        if key not in self._tables:
            plugin = None if key.format is None else key.format.plugin
            how = key.stochastic, self._counted
            self._tables[key] = _C.UpdateTable(key.rule, plugin, key.device, *how)
            self._stores[key], self._parameters[key] = [], []
        parameter, state, name, group, *_ = entry
        self._parameters[key].append(parameter)
        if entry.store is not None:
            self._stores[key].append(entry.store)
        self._tables[key].add(parameter, name, group, state, *draw)

    def _lay_out(self) -> list[StepTable]:
        """Each table's part in a step. Amaxes that a process group reduces lie together, in one
        order on all ranks: that of the parameters. So do those among which some share a scale.
        """
        together: dict[tuple, list[Key]] = {}
        for key, table in self._tables.items():
            peers = scale_groups.peers_of(self._stores[key])
            table.share(peers)
            if key.group is not None or peers is not None:
                together.setdefault((key.device, key.group), []).append(key)
        amaxes: dict[Key, torch.Tensor] = {}
        for (device, group), keys in together.items():
            counts = [len(self._tables[key]) for key in keys]
            words = torch.zeros(sum(counts), dtype=torch.int32, device=device)
            self._reductions.append(reduction := Reduction(words, group))
            amaxes.update(zip(keys, reduction.floats.split(counts), strict=True))
        return [
            StepTable(table, amaxes.get(key), key.group is not None)
            for key, table in self._tables.items()
        ]

    @property
    def has_stale(self) -> bool:
        """Whether a step begins with casts."""
        return any(shard.store.is_stale for shard in self._continued)

    def prepare(self, options: list[list[float | torch.Tensor]], amp: Amp) -> bool:
        """Reads and checks all gradients and changes nothing. False if a parameter's memory or
        state is no longer what the tables say.
        """
        for parameter in self._redistributed:  # collective if they are summands
            gradient = parameter.grad
            if isinstance(gradient, DTensor) and gradient.placements != parameter.placements:
                parameter.grad = gradient.redistribute(placements=parameter.placements)
        tables = [(key.device, table) for key, table in self._tables.items()]
        tables += [(each.device, table) for each in self._updates for table in each.tables]
        return all(updates.is_current() for updates in self._updates) and all(
            table.prepare_counted(options, *amp.on(device))
            if self._counted
            else table.prepare(options, amp.grad_scale)
            for device, table in tables
        )

    def replace_gradients(self, given: dict[torch.Tensor, tuple[torch.Tensor, float]]) -> None:
        """Has the prepared step take other tensors, each times a factor, in the place of some
        parameters' gradients: contiguous ones, of the shapes of their local parts.
        """
        of_tables = [(self._tables[key], each) for key, each in self._parameters.items()]
        for one in self._updates:
            of_tables += one.parameters_of_tables()
        for table, each in of_tables:
            table.replace_gradients([given.get(parameter) for parameter in each])

    def step(self) -> None:
        """Takes the step that was prepared. First casts the stale weights with delayed scaling,
        whose history the update continues; of all others the update makes the bytes, unless the GPU
        decides whether there is one.
        """
        if any(shard.is_asked or shard.store.is_stale for shard in self._continued):
            stale.cast(self._continued)
        for parameter, store in self._delayed if self._loaded_histories else ():
            if (history := self._loaded_histories.get(parameter)) is not None:
                store.bytes.history.copy_(history)
        for one in (*self._reductions, *self._updates):
            one.begin()
        run_step(self._parts, self._collective)


def _updates_of(key: tuple, entries: list[Entry]) -> Updates:
    """The Updates of shards on one device, of one rule and rounded alike, that share blocks within
    a group.
    """
    rule, _, group, *_ = key
    stores = [entry.store for entry in entries]
    runs = [(one.begin, one.end) for one in map(stale.flat_shard_of, stores)]
    parameters = [entry.parameter for entry in entries]
    weights = [dtensors.local_of(parameter) for parameter in parameters]
    return Updates(weights, runs, parameters, stale.ranges_of(stores), group, rule)


def _redistributed(parameters: list[torch.Tensor]) -> list[torch.Tensor]:
    """DTensors whose gradient may have another placement than the parameter: Partial or Replicate
    under tensor parallelism. Gradients of fully_shard's parameters have theirs, unless those are
    replicated.
    """
    distributed = [one for one in parameters if isinstance(one, DTensor)]
    managed = torch_names.managed
    return [one for one in distributed if managed(one)[1] is None or _is_replicated(one)]


def _is_replicated(parameter: DTensor) -> bool:
    mesh, placements = parameter.device_mesh, parameter.placements
    return any(one.is_replicate() and mesh.size(at) > 1 for at, one in enumerate(placements))
