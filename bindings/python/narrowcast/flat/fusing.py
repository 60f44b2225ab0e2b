"""narrowcast.flat.fuse: an optimizer's step makes the bytes of weights in the pass that updates
shards of their masters.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from narrowcast import _C
from narrowcast.flat import shards
from narrowcast.flat.exchange import Exchange, Part, Ranges
from narrowcast.flat.shards import Shard
from narrowcast.flat.weights import Weights, invalidate_columnwise
from narrowcast.registry import Format
from narrowcast.tensor.store import Store

if TYPE_CHECKING:
    from narrowcast.optimizer import FusedAdam
    from narrowcast.optimizer.parameters import Entry

# As int32 words: a launch skips a shard whose float is negative (-1.0).
_UPDATE, _SKIP = 0, struct.unpack("<i", struct.pack("<f", -1.0))[0]


def fuse(
    optimizer: FusedAdam,
    model_weights: Sequence[torch.Tensor],
    master_weights: Sequence[torch.Tensor | None],
    start_offsets: Sequence[int | None],
    group: dist.ProcessGroup | None = None,
    manual_post_all_gather_processing: bool = False,
) -> None:
    """From now on optimizer.step() leaves behind what nc.quantize_master_weights would after it: it
    updates this rank's shards of master weights and writes the weights' bytes in one pass over
    memory, with one reduction at most, of what cuts divide and of amaxes of tensors.

    optimizer       a FusedAdam; may be called again for other weights, as of another process group.
                    Where a rank owns nothing: one over a group without parameters
    master_weights  float32 [elements], contiguous, on the weights' device: parameters of the
                    optimizer, which are their own masters; None where this rank owns nothing
    model_weights, start_offsets, group, manual_post_all_gather_processing
                    as in nc.quantize_master_weights

    Collective, and the host waits: ranks exchange what they own. Then step() is collective too
    where cuts divide blocks or bytes, or a scale spans a tensor: every rank calls it, also one that
    owns nothing. Ranks have gradients of the same weights, and their groups the same seeds; weight
    i of the list draws from seed + i.

    Weights may get other bytes or another memory (Module.to, share_memory): the next step writes
    those. As of any optimizer, where the model gets another tensor in the place of a weight
    (load_state_dict with assign=True), nothing changes for this one: call narrowcast.flat.unfuse
    and fuse what the model has now, on all ranks.

    Masters that are set by other means (a checkpoint) are cast by nc.quantize_master_weights. A
    copy of the optimizer is fused anew.

    TypeError or ValueError for arguments that are wrong on this rank, or shards that do not cover
    the weights once; RuntimeError on all ranks if they hand in different weights.
    """
    group = shards.group_or_all(group)
    _check_kind(optimizer)
    own = shards.read("fuse", model_weights, master_weights, start_offsets)
    parameters = [
        None if shard.master is None else master
        for shard, master in zip(own, master_weights, strict=True)
    ]
    _check_new(optimizer, own)
    _check_masters(optimizer, parameters)
    of_all = shards.exchange_ranges(own, group)
    if own:
        weights = Weights("those that were fused", model_weights)
        runs = [(shard.begin, shard.end) for shard in own]
        updates = Updates(
            weights, runs, parameters, of_all, group, manual_post_all_gather_processing
        )
        optimizer.fused.append(updates)
        optimizer.forget_tables()


def unfuse(optimizer: FusedAdam) -> None:
    """Takes back every narrowcast.flat.fuse of an optimizer: its steps update masters alone. To be
    called on all ranks.
    """
    _check_kind(optimizer)
    optimizer.fused.clear()
    optimizer.forget_tables()


def _check_kind(optimizer) -> None:
    if not hasattr(optimizer, "fused"):
        raise TypeError(
            f"the optimizer is a {type(optimizer).__name__}, not a narrowcast.FusedAdam: with "
            "others, call nc.quantize_master_weights after their step"
        )


def _check_new(optimizer: FusedAdam, own: list[Shard]) -> None:
    known = {id(store) for fused in optimizer.fused for store in fused.weights.present()}
    for place, shard in enumerate(own):
        if id(shard.store) in known:
            raise ValueError(
                f"weight {place}, a {shard.store.describe()}, has been fused with this optimizer "
                "already; shards of one process group make up a weight"
            )


def _check_masters(optimizer: FusedAdam, masters: list[torch.Tensor | None]) -> None:
    parameters = {id(one) for group in optimizer.param_groups for one in group["params"]}
    seen: dict[int, int] = {}
    for place, master in enumerate(masters):
        if master is None:
            continue
        if (first := seen.setdefault(id(master), place)) != place:
            raise ValueError(f"weight {place} has the master shard of weight {first}: each has one")
        if master.dim() != 1 or not master.is_contiguous():
            raise ValueError(
                f"weight {place}: its master shard has shape {tuple(master.shape)} and strides "
                f"{master.stride()}; one dimension, contiguous, is needed"
            )
        if id(master) not in parameters:
            raise ValueError(
                f"weight {place}: its master shard is no parameter of the optimizer: make "
                "FusedAdam over the master shards first"
            )
        if place_in(optimizer.fused, master) is not None:
            raise ValueError(
                f"weight {place}: its master shard is fused with another weight already"
            )


class Updates:
    """The weights of one call of fuse(). `runs`: the elements of each weight that are this rank's;
    `parameters`: the optimizer's, of each shard; None of empty ones.

    The exchange says of each weight whether to skip it, because its owners have no gradient: a rank
    that owns nothing of a weight cannot know.
    """

    def __init__(
        self,
        weights: Weights,
        runs: list[tuple[int, int]],
        parameters: list[torch.Tensor | None],
        ranges: Ranges,
        group: dist.ProcessGroup | None,
        manual: bool,
    ):
        self.weights, self.parameters, self.group = weights, parameters, group
        self._runs, self._ranges, self._manual = runs, ranges, manual
        self.places = {id(one): i for i, one in enumerate(parameters) if one is not None}
        self.tables: list[_C.AdamTable] = []
        self._make_exchange(weights.stores())

    def _make_exchange(self, stores: list[Store]) -> None:
        shards = [Shard(store, *run, None) for store, run in zip(stores, self._runs, strict=True)]
        by_format: dict[Format, list[int]] = defaultdict(list)
        for place, store in enumerate(stores):
            by_format[store.format].append(place)
        runs = (self._runs[place] for place in chain.from_iterable(by_format.values()))
        skips = [_UPDATE if begin < end else _SKIP for begin, end in runs]
        header = torch.tensor(skips, dtype=torch.int32, device="cpu")
        self.exchange = Exchange(shards, self._ranges, self.group, header)
        self._origins = [shard.origin for shard in shards]

    def build(self, entries: list[Entry]) -> list[_C.AdamPart]:
        """Makes the tables anew and returns their parts in a step. `entries`: of the optimizer's
        parameters. ValueError if shards of one format are rounded in two ways.
        """
        stores = self.weights.stores()
        if not self.exchange.is_current(stores):
            self._make_exchange(stores)
        known = {id(entry.parameter): entry for entry in entries}
        self.tables, at = [], 0
        for part in self.exchange.parts:
            own = [known.get(id(self.parameters[place])) for place in part.places]
            self.tables.append(self._table(part, own, at))
            at += len(own)
        is_reduced = self.exchange.is_collective
        return [
            _C.AdamPart(table, part.amaxes if is_reduced else None, is_reduced)
            for table, part in zip(self.tables, self.exchange.parts, strict=True)
        ]

    def _table(self, part: Part, own: list[Entry | None], at: int) -> _C.AdamTable:
        stochastic = {entry.seed is not None for entry in own if entry is not None}
        if len(stochastic) > 1:
            raise ValueError(
                f"flat shards of weights in {part.format.name} are rounded to nearest in one "
                "option group and stochastically in another: one launch updates all of a format, "
                "so give them one rounding"
            )
        shared = self.exchange.is_collective
        skips = self.exchange.floats[at : at + len(own)] if shared else None
        exchange = self.exchange.floats if shared else None
        table = _C.AdamTable(part.shards, stochastic == {True}, exchange, skips)
        origins = (self._origins[place] for place in part.places)
        for entry, origin in zip(own, origins, strict=True):
            if entry is None:  # an empty shard, or one that the optimizer's groups no longer have
                none = torch.zeros(0, dtype=torch.float32, device=self.device)
                table.add(none, "no parameter", 0, {}, 0, 0)
            else:
                parameter, state, name, group, seed = entry
                table.add(parameter, name, group, state, seed or 0, origin)
        return table

    @property
    def device(self) -> torch.device:
        return self.exchange.device

    def is_current(self) -> bool:
        """A step begins: whether the weights' buffers are those that the tables are of. As
        Weights.stores() raises.
        """
        return self.exchange.is_current(self.weights.stores())

    def begin(self) -> None:
        """Before the update: says of which shards this rank has a gradient, and takes columnwise
        bytes away that follow from rowwise ones.
        """
        for store in self.weights.present():
            # Columnwise bytes may have been made since the last step.
            if store.pending is None and store.format.columnwise_derived:
                invalidate_columnwise(store, self._manual)
        self.weights.note_writes()
        self.exchange.begin()
        at = 0
        for table in self.tables:
            absent = [at + place for place in table.find_absent()]
            if absent and self.exchange.is_collective:
                self.exchange.header[absent] = _SKIP
            at += len(table)


def place_in(every: list[Updates], parameter: torch.Tensor) -> int | None:
    """Of a parameter in the lists that it is fused in; None if it is no flat shard."""
    return next((one.places[id(parameter)] for one in every if id(parameter) in one.places), None)
