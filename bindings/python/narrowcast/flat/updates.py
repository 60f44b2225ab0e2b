"""The flat shards that an optimizer updates: a table of the launch for each format, and the one
reduction that they may need.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from itertools import chain
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from narrowcast import _C
from narrowcast.flat import columnwise
from narrowcast.flat.exchange import Exchange, Part, Ranges
from narrowcast.flat.shards import Shard
from narrowcast.flat.weights import Weights
from narrowcast.registry import Format
from narrowcast.tensor.store import Store

if TYPE_CHECKING:
    from narrowcast.optimizer.entry import Entry

# Verdicts. The bits of -1.0: a launch leaves its shard alone.
_CAST, _LEAVE = 0, struct.unpack("<i", struct.pack("<f", -1.0))[0]


class Updates:
    """What narrowcast.flat.fuse was told. `runs`: the elements of each weight that are this rank's;
    `parameters`: the optimizer's, of each shard; None of empty ones.

    The exchange has a verdict for each weight, 0 if its owners have a gradient, else negative: a
    rank that owns nothing of a weight cannot know.
    """

    def __init__(
        self,
        weights: Weights,
        runs: list[tuple[int, int]],
        parameters: list[torch.Tensor | None],
        ranges: Ranges,
        group: dist.ProcessGroup | None,
        by_hand: bool,
    ):
        self.weights, self.parameters, self.group = weights, parameters, group
        self._runs, self._ranges, self._by_hand = runs, ranges, by_hand
        self.places = {id(one): i for i, one in enumerate(parameters) if one is not None}
        self.tables: list[_C.AdamTable] = []
        self._make_exchange(weights.stores())

    def _make_exchange(self, stores: list[Store]) -> None:
        shards = [Shard(store, *run, None) for store, run in zip(stores, self._runs, strict=True)]
        by_format: dict[Format, list[int]] = defaultdict(list)
        for place, store in enumerate(stores):
            by_format[store.format].append(place)
        runs = (self._runs[place] for place in chain.from_iterable(by_format.values()))
        verdicts = [_CAST if begin < end else _LEAVE for begin, end in runs]
        header = torch.tensor(verdicts, dtype=torch.int32, device="cpu")
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
        verdicts = self.exchange.floats[at : at + len(own)] if shared else None
        exchange = self.exchange.floats if shared else None
        table = _C.AdamTable(part.shards, stochastic == {True}, exchange, verdicts)
        origins = (self._origins[place] for place in part.places)
        for entry, origin in zip(own, origins, strict=True):
            if entry is None:
                table.add(*self._nothing())
            else:
                parameter, state, name, group, seed = entry
                table.add(parameter, name, group, state, seed or 0, origin)
        return table

    def _nothing(self) -> tuple:
        """In the place of a parameter: of an empty shard, or of one that the optimizer's groups no
        longer have.
        """
        empty = torch.zeros(0, dtype=torch.float32, device=self.exchange.device)
        step = torch.zeros((), dtype=torch.float32, device="cpu")
        state = {"step": step, "exp_avg": empty, "exp_avg_sq": empty}
        return empty, "no parameter", 0, state, 0, 0

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
            # Columnwise bytes may be there that somebody has made since the last step.
            if store.pending is None and store.format.columnwise_derived:
                columnwise.withhold(store, self._by_hand)
        self.weights.note_writes()
        self.exchange.begin()
        at = 0
        for table in self.tables:
            absent = [at + place for place in table.find_absent()]
            if absent and self.exchange.is_collective:
                self.exchange.header[absent] = _LEAVE
            at += len(table)


def place_in(every: list[Updates], parameter: torch.Tensor) -> int | None:
    """Of a parameter in the lists that it is fused in; None if it is no flat shard."""
    return next((one.places[id(parameter)] for one in every if id(parameter) in one.places), None)
