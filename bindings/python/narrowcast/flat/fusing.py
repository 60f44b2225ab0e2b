"""narrowcast.flat.fuse: an optimizer's step makes the bytes of weights in the pass that updates
shards of their masters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.distributed as dist

from narrowcast import _C
from narrowcast.flat import shards
from narrowcast.flat.exchange import Exchange, FormatShards
from narrowcast.flat.gather import invalidate_columnwise, note_writes
from narrowcast.flat.shards import FlatShard, Ranges
from narrowcast.tensor import QuantizedTensor
from narrowcast.tensor.casting import SKIP, TAKE
from narrowcast.tensor.store import Store

if TYPE_CHECKING:
    from narrowcast.optimizer import FusedOptimizer
    from narrowcast.optimizer.parameters import Entry


def fuse(
    optimizer: FusedOptimizer,
    model_weights: Sequence[torch.Tensor],
    master_weights: Sequence[torch.Tensor | None],
    start_offsets: Sequence[int | None],
    group: dist.ProcessGroup | None = None,
) -> None:
    """Has optimizer.step() make the bytes that nc.quantize_master_weights would make after it. A
    step updates this rank's shards of master weights and writes the bytes in one pass over memory,
    with at most one reduction.

    optimizer       one of nc.optim; on a rank that owns nothing, over a group without parameters.
                    It may be fused again with other weights, as of another process group
    master_weights  float32 [elements], contiguous, on the weights' device: parameters of the
                    optimizer, which are their own masters; None where this rank owns nothing
    model_weights, start_offsets, group
                    as in nc.quantize_master_weights

    Collective, and the host waits, because ranks exchange which elements they own. step() is then
    collective too if a cut divides a block or a byte, or a scale spans a tensor: every rank calls
    it, also a rank that owns nothing. Ranks have gradients of the same weights and groups with the
    same seeds; weight i of the list has the seed `seed` + i.

    Weights may get other bytes or another memory (Module.to, share_memory): the next step writes
    those. If the model gets another tensor in a weight's place (load_state_dict with assign=True),
    call nc.flat.unfuse and fuse the new weights, on all ranks. Cast masters that are set by other
    means (a checkpoint) with nc.quantize_master_weights. Fuse a copy of the optimizer anew.

    NotImplementedError: an optimizer whose rule needs whole matrices (Muon).
    TypeError or ValueError: no such weight or master shard. ValueError on all ranks: the shards do
    not cover the weights once. DisagreementError on all ranks: they hand in different weights.
    """
    if not optimizer.takes_flat_shards:
        raise NotImplementedError(
            f"{optimizer.name} updates whole matrices, and flat shards are runs of their elements: "
            "have another optimizer update them, or cast the masters after a step of Megatron's "
            "layer-wise optimizer (nc.quantize_master_weights)"
        )
    group = shards.group_or_all(group)
    own = shards.read(model_weights, master_weights, start_offsets)
    known = {id(one) for param_group in optimizer.param_groups for one in param_group["params"]}
    for place, master in enumerate(master_weights):
        if own[place].master is not None and id(master) not in known:
            raise ValueError(
                f"weight {place}: its master shard is no parameter of the optimizer: make "
                "the optimizer over the master shards first"
            )
    if own:
        ranges = shards.exchange_ranges(own, group)
        masters = [
            None if shard.master is None else master
            for shard, master in zip(own, master_weights, strict=True)
        ]
        runs = [(shard.begin, shard.end) for shard in own]
        updates = Updates([*model_weights], runs, masters, ranges, group, optimizer.rule)
        optimizer.flat_updates.append(updates)
        optimizer.forget_tables()


def unfuse(optimizer: FusedOptimizer) -> None:
    """Undoes every nc.flat.fuse of an optimizer, whose steps then update masters alone. Call it on
    all ranks.
    """
    optimizer.flat_updates.clear()
    optimizer.forget_tables()


class StepTable(NamedTuple):
    """A table's part in a step. `amax`: float32, one a parameter, of the tables whose amaxes are
    reduced or shared, which the caller has zeroed; `is_reduced`: the cast waits for a reduction.
    """

    table: _C.UpdateTable
    amax: torch.Tensor | None
    is_reduced: bool


class Updates:
    """The weights of one call of fuse(), or those of an optimizer's parameters that share blocks
    with other ranks. `runs`: the elements of each weight that are this rank's; `parameters`: the
    optimizer's, of each shard, None of empty ones; `rule`: by which they are updated.

    The exchange says of each weight whether to skip it, because its owners have no gradient: a rank
    that owns nothing of a weight cannot know.
    """

    def __init__(
        self,
        weights: list[torch.Tensor],
        runs: list[tuple[int, int]],
        parameters: list[torch.Tensor | None],
        ranges: Ranges,
        group: dist.ProcessGroup | None,
        rule: str,
    ):
        self.weights, self.parameters, self.group = weights, parameters, group
        self._rule = rule
        self._runs, self._ranges = runs, ranges
        self.indices = {id(one): i for i, one in enumerate(parameters) if one is not None}
        self.tables: list[_C.UpdateTable] = []
        self._make_exchange()

    def _make_exchange(self) -> None:
        own = zip(self._stores, self._runs, strict=True)
        own = [FlatShard(store, *run, None) for store, run in own]
        skips = [TAKE if begin < end else SKIP for begin, end in self._runs]
        self.exchange = Exchange(own, self._ranges, self.group, skips)
        self.device = self.exchange.device

    @property
    def _stores(self) -> list[Store]:
        """Present ones: Module.to and others give weights new ones."""
        return [weight._store for weight in self.weights]

    def is_current(self) -> bool:
        """Whether the weights' buffers are those that the tables are of."""
        return self.exchange.is_current(self._stores)

    def build(self, entries: list[Entry], counted: bool) -> list[StepTable]:
        """Makes the tables anew and returns their parts in a step. `entries`: of the optimizer's
        parameters; `counted`: the GPU counts steps. ValueError if shards of one format are rounded
        in two ways.
        """
        if not self.is_current():
            self._make_exchange()
        known = {id(entry.parameter): entry for entry in entries}
        self.tables, made = [], []
        is_reduced = self.exchange.is_collective
        for of_format in self.exchange.formats:
            own = [known.get(id(self.parameters[index])) for index in of_format.indices]
            table = self._table(of_format, own, counted)
            has_amaxes = is_reduced or of_format.peers is not None
            made.append(StepTable(table, of_format.amaxes if has_amaxes else None, is_reduced))
            self.tables.append(table)
        return made

    def _table(
        self, of_format: FormatShards, own: list[Entry | None], counted: bool
    ) -> _C.UpdateTable:
        stochastic = {entry.stochastic for entry in own if entry is not None}
        if len(stochastic) > 1:
            raise ValueError(
                f"flat shards of weights in {of_format.format.name} are in option groups of two "
                "roundings, and one launch updates them all: give them one rounding"
            )
        is_reduced = self.exchange.is_collective
        shared = (self.exchange.floats, of_format.skips) if is_reduced else (None, None)
        how = stochastic == {True}, counted
        table = _C.UpdateTable(self._rule, of_format.shards, *how, *shared)
        for entry in own:
            if entry is None:  # an empty shard, or one that the optimizer's groups no longer have
                none = torch.zeros(0, dtype=torch.float32, device=self.device)
                table.add(none, "no parameter", 0, {}, 0, 0)
            else:
                parameter, state, name, group, seed, *_ = entry
                table.add(parameter, name, group, state, seed or 0, 0)
        table.share(of_format.peers)
        return table

    def parameters_of_tables(self) -> list[tuple[_C.UpdateTable, list[torch.Tensor | None]]]:
        """The tables, each with its parameters; None of empty shards."""
        indices = (of_format.indices for of_format in self.exchange.formats)
        every = [[self.parameters[index] for index in some] for some in indices]
        return [*zip(self.tables, every, strict=True)]

    def begin(self) -> None:
        """Before the update: says of which shards this rank has a gradient, and takes columnwise
        bytes away that follow from rowwise ones.
        """
        for store in self._stores:
            if store.pending is None:  # some may have been made since the last step
                invalidate_columnwise(store, manual=False)
        # Those that are their own masters are written to by the step, which counts that.
        note_writes(one for one in self.weights if isinstance(one, QuantizedTensor))
        self.exchange.begin()
        if self.exchange.is_collective:
            for table, of_format in zip(self.tables, self.exchange.formats, strict=True):
                if absent := table.find_absent():
                    of_format.skips[absent] = SKIP


def index_in(every: list[Updates], parameter: torch.Tensor) -> int | None:
    """Of a parameter in the lists that it is fused in; None if it is no flat shard."""
    return next((one.indices[id(parameter)] for one in every if id(parameter) in one.indices), None)
