"""The launches of FusedAdam: one for each device and format, and process group where amaxes are
reduced.
"""

from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import torch

from narrowcast import _C, consensus
from narrowcast.fsdp import agreement, shared_casts
from narrowcast.optimizer import gradients
from narrowcast.optimizer.entry import Entry
from narrowcast.optimizer.reduction import Reduction
from narrowcast.optimizer.state import make_updatable
from narrowcast.registry import Format
from narrowcast.tensor import QuantizedTensor, dtensors
from narrowcast.tensor.store import Store
from narrowcast.zero.updates import Updates, place_in

_WAY_OUT = (
    "the other ranks have updated their shards. Every rank raises this error. Load a checkpoint on "
    "all ranks; or go on: the next gather makes the bytes of the masters as they are"
)


class Key(NamedTuple):
    """What the parameters of one launch have in common. `format`: None of plain ones; `group`: over
    which their amaxes are reduced.
    """

    device: torch.device
    format: Format | None = None
    group: Any = None
    stochastic: bool = False


class Tables:
    """Made from all parameters of an optimizer. `masters`: those that the state had when the
    optimizer last looked, by parameter; brought up to date here. `fused`: flat shards, the
    optimizer's own list; `seeds`: of its groups.
    """

    def __init__(
        self,
        entries: list[Entry],
        masters: dict[torch.Tensor, torch.Tensor],
        fused: list[Updates],
        seeds: list[int | None],
    ):
        self._tables: dict[Key, _C.AdamTable] = {}
        self._entries: dict[Key, list[Entry]] = {}
        self._masters = masters
        self._delayed: list[tuple[Store, Any]] = []  # with the process group of their shards
        self._agreements = agreement.Agreements()
        self.have_agreed = False  # in this step; whoever begins one says so
        every = [entry.parameter for entry in entries]
        self._distributed = gradients.of_other_ways(every)
        sharing: dict[tuple, list[Entry]] = {}  # shards that share blocks with others
        for entry in entries:
            if place_in(fused, entry.parameter) is None:
                self._add(entry, sharing)
        self._reductions: list[Reduction | Updates] = []
        self._parts = self._lay_out(entries)
        self._fused = fused  # which may get more before the next tables are made
        self._updates = [*fused, *(_updates_of(*each) for each in sharing.items())]
        self._parts += chain.from_iterable(one.build(entries, seeds) for one in self._updates)
        self._reductions += self._updates
        self._shared = [one.shared for one in self._reductions if one.shared is not None]

    def _add(self, entry: Entry, sharing: dict[tuple, list[Entry]]) -> None:
        local = dtensors.local_of(entry.parameter)
        if not isinstance(local, QuantizedTensor):
            self._enter(Key(local.device), entry, (0, 0))
            return
        _check_in_model(entry, local)
        local.detach_from_whole()
        if entry.state or entry.parameter.requires_grad:  # another rank may have a gradient
            make_updatable(local)
        store = local._store
        if entry.state:
            self._settle_master(entry, local)
            if store.bytes.history is not None:
                entry.state["history"] = store.bytes.history
        group = dtensors.shard_group(entry.parameter)
        stochastic = entry.seed is not None
        draw = (entry.seed, dtensors.first_element(entry.parameter)) if stochastic else (0, 0)
        if store.place is not None:
            if store.master is not None:
                part = store.place.part, store.place.parts
                sharing.setdefault((local.device, group, stochastic, part), []).append(entry)
            return
        if store.format.is_delayed:
            self._delayed.append((store, group))
        shared = group if store.format.tensor_amax else None
        self._enter(Key(local.device, store.format, shared, stochastic), entry, draw)

    def _settle_master(self, entry: Entry, local: QuantizedTensor) -> None:
        """The state's master and the weight's are one tensor. Where they differ, either FSDP2 has
        copied the shard, or the user has put another tensor into the state, whose value it then is.
        """
        state, value = entry.state, local._store.master.value
        if "master" not in state and entry.parameter not in self._masters:
            # It was of float32, and its own master, until nc.convert made a weight of it.
            state["master"] = dtensors.like(entry.parameter, local.master)
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

    def _enter(self, key: Key, entry: Entry, draw: tuple[int, int]) -> None:
        if key not in self._tables:
            plugin = None if key.format is None else key.format.plugin
            self._tables[key] = _C.AdamTable(plugin, key.device, key.stochastic)
            self._entries[key] = []
        parameter, state, name, group, _ = entry
        self._tables[key].add(parameter, name, group, state, *draw)
        self._entries[key].append(entry)

    def _lay_out(self, entries: list[Entry]) -> list[_C.AdamPart]:
        """Each table's part in a step. Amaxes that a process group reduces lie together, in one
        order on all ranks: that of the parameters.
        """
        amaxes: dict[Key, torch.Tensor] = {}
        shared: dict[Key, _C.SharedAmaxes] = {}
        together: dict[tuple, list[Key]] = {}
        for key in self._tables:
            if key.group is not None:
                together.setdefault((key.device, key.group), []).append(key)
        pairs = ((entry.parameter, entry.line) for entry in entries)
        lines = consensus.lines_by_group(pairs) if together else {}
        for (_, group), keys in together.items():
            tables = {self._tables[key]: self._entries[key] for key in keys}
            reduction = Reduction(group, tables, lines[group])
            self._reductions.append(reduction)
            amaxes.update(zip(keys, reduction.amaxes, strict=True))
            shared.update(dict.fromkeys(keys, reduction.shared))
        return [
            _C.AdamPart(table, amaxes.get(key), shared.get(key))
            for key, table in self._tables.items()
        ]

    def prepare(self, options: list[_C.AdamOptions], grad_scale: float | None) -> bool:
        """Reads and checks all gradients and changes nothing. False if a parameter's memory or
        state is no longer what the tables say.
        """
        gradients.put_in_place(self._distributed)
        tables = chain(self._tables.values(), *(updates.tables for updates in self._updates))
        return all(updates.is_current() for updates in self._updates) and all(
            table.prepare(options, grad_scale) for table in tables
        )

    def hear(self) -> None:
        """A step begins. DisagreementError, on all ranks, if the last one was not of all ranks."""
        consensus.each(reduction.hear for reduction in self._reductions)

    def begin(self) -> Callable[[], None]:
        """Of the step that was prepared, what changes no master: stale bytes whose history the
        update goes on with are made (all others it makes itself), and ranks say who has gradients.
        Returns what takes the step, a function of C's: see bindings/optimizer.cpp.
        """
        self._agree()
        for reduction in self._reductions:
            reduction.begin()
        absent = any(reduction.lacks_gradients for reduction in self._reductions)
        rest = self._cast_absent if absent else None
        return partial(_C.run_step, self._parts, self._shared, rest)

    def end(self) -> None:
        """After the step. DisagreementError, as hear(), on the CPU."""
        consensus.each(reduction.listen for reduction in self._reductions)

    def withdraw(self) -> None:
        """In the place of a step, on a rank that cannot take it: joins the others' reductions, and
        has them fail too.
        """
        new = [one for one in self._fused if one not in self._reductions]  # without tables yet
        if not self._reductions and not new:
            return
        self.hear()
        self._agree()
        for reduction in chain(self._reductions, new):
            reduction.withdraw()

    def _agree(self) -> None:
        if self.have_agreed or not self._delayed:  # as far as this rank could
            return
        self.have_agreed = True
        self._agreements.make_bytes(
            [store for store, _ in self._delayed], lambda: [group for _, group in self._delayed]
        )

    def _cast_absent(self) -> None:
        for reduction in self._reductions:
            if reduction.lacks_gradients:
                reduction.cast_absent()


def _updates_of(key: tuple, entries: list[Entry]) -> Updates:
    """Of the shards on a device, rounded alike, that share blocks with those of a process group."""
    _, group, *_ = key
    stores = [entry.store for entry in entries]
    runs = [(one.begin, one.end) for one in map(shared_casts.shard_of, stores)]
    parameters = [entry.parameter for entry in entries]
    ranges = shared_casts.ranges_of(stores)
    own = shared_casts.OwnStores(stores)
    return Updates(own, runs, parameters, ranges, group, by_hand=False, way_out=_WAY_OUT)


def _check_in_model(entry: Entry, local: QuantizedTensor) -> None:
    """RuntimeError if shards have taken the place of a weight: its gradient would never come."""
    if local._store.is_cut:
        raise RuntimeError(
            f"{entry.name}: fully_shard has replaced this weight by its shards since FusedAdam was "
            "made, so a step would leave the model as it is. Make the optimizer after fully_shard"
        )


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
