"""The flat shards that an optimizer updates: a table of the launch for each format, and the one
reduction that they may need.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from narrowcast import _C, consensus
from narrowcast.tensor import casting
from narrowcast.tensor.store import Store
from narrowcast.zero import columnwise
from narrowcast.zero.exchange import Exchange, Part, Ranges
from narrowcast.zero.shards import Shard
from narrowcast.zero.weights import Weights

if TYPE_CHECKING:
    from narrowcast.optimizer.entry import Entry

_DIGEST = 2  # integers: half of a digest, and its negative
_DIGEST_VALUES = 2**31
# A verdict, the bits of -1.0: a launch leaves its shard alone.
_NOBODYS = struct.unpack("<i", struct.pack("<f", -1.0))[0]
_WAY_OUT = (
    "the other ranks have updated their shards. Every rank raises this error. Load a checkpoint on "
    "all ranks; or, if codes are rounded to nearest (random bits depend on the step, and ranks are "
    "a step apart), go on, after nc.quantize_master_weights has made the bytes of the masters as "
    "they are"
)


class Updates:
    """What narrowcast.zero.fuse was told. `runs`: the elements of each weight that are this rank's;
    `parameters`: the optimizer's, of each shard; None of empty ones.

    The exchange has, beside a digest of what ranks must have alike, for each weight a verdict, 0 if
    an owner had a gradient, else negative; and a 1 if one had none.
    """

    lacks_gradients = False  # ranks have gradients of the same weights

    def __init__(
        self,
        weights: Weights,
        runs: list[tuple[int, int]],
        parameters: list[torch.Tensor | None],
        ranges: Ranges,
        group: dist.ProcessGroup | None,
        by_hand: bool,
        way_out: str = _WAY_OUT,
    ):
        self.weights, self.parameters, self.group = weights, parameters, group
        self._runs, self._ranges = runs, ranges
        self._by_hand, self._way_out = by_hand, way_out
        self.places = {id(one): i for i, one in enumerate(parameters) if one is not None}
        self.tables: list[_C.AdamTable] = []
        self.shared: _C.SharedAmaxes | None = None
        self._make_exchange(weights.stores())

    def _make_exchange(self, stores: list[Store]) -> None:
        count = len(stores)
        shards = [Shard(store, *run, None) for store, run in zip(stores, self._runs, strict=True)]
        exchange = Exchange(
            shards, self._ranges, self.group, "FusedAdam's step", self._way_out, _DIGEST + 2 * count
        )
        sizes = [1, _DIGEST, count, count]
        _, self._digest, verdicts, _ = exchange.silence[: sum(sizes)].split(sizes)
        self._order = list(chain.from_iterable(part.places for part in exchange.parts))
        runs = [self._runs[place] for place in self._order]
        verdicts.copy_(_int32([0 if begin < end else _NOBODYS for begin, end in runs]))
        _, _, self._verdicts, self._lacking = exchange.header.split(sizes)
        self._origins = [shard.origin for shard in shards]
        self._exchange = exchange

    def build(self, entries: list[Entry], seeds: Iterable[int | None]) -> list[_C.AdamPart]:
        """Makes the tables anew and returns their parts in a step. `entries`: of the optimizer's
        parameters; `seeds`: of its groups. ValueError if shards of one format are rounded in two
        ways.
        """
        stores = self.weights.stores()
        if not self._exchange.is_current(stores):
            self._make_exchange(stores)
        digest = consensus.digest(sorted({str(seed) for seed in seeds})) % _DIGEST_VALUES
        self._digest.copy_(_int32([digest, -digest]))
        known = {id(entry.parameter): entry for entry in entries}
        self.tables, at = [], 0
        for part in self._exchange.parts:
            own = [known.get(id(self.parameters[place])) for place in part.places]
            self.tables.append(self._table(part, own, at))
            at += len(own)
        self.shared = None
        if self._exchange.is_collective:
            reduce = casting.reducer(self._exchange.memory, self._exchange.group)
            self.shared = _C.SharedAmaxes(self._exchange.floats, reduce)
        return [
            _C.AdamPart(table, part.amaxes if self.shared else None, self.shared)
            for table, part in zip(self.tables, self._exchange.parts, strict=True)
        ]

    def _table(self, part: Part, own: list[Entry | None], at: int) -> _C.AdamTable:
        stochastic = {entry.seed is not None for entry in own if entry is not None}
        if len(stochastic) > 1:
            raise ValueError(
                f"flat shards of weights in {part.format.name} are rounded to nearest in one "
                "option group and stochastically in another: one launch updates all of a format, "
                "so give them one rounding"
            )
        shared = self._exchange.is_collective
        verdicts = self._verdicts[at : at + len(own)].view(torch.float32) if shared else None
        exchange = self._exchange.floats if shared else None
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
        empty = torch.zeros(0, dtype=torch.float32, device=self._exchange.device)
        step = torch.zeros((), dtype=torch.float32, device="cpu")
        state = {"step": step, "exp_avg": empty, "exp_avg_sq": empty}
        return empty, "no parameter", 0, state, 0, 0

    @property
    def device(self) -> torch.device:
        return self._exchange.device

    def is_current(self) -> bool:
        """A step begins: whether the weights' buffers are those that the tables are of. As
        Weights.stores() raises.
        """
        return self._exchange.is_current(self.weights.stores())

    def hear(self) -> None:
        """DisagreementError, on all ranks, if the last step was not one of all ranks alike."""
        try:
            self._judge(self._exchange.hear())
        except consensus.DisagreementError:
            for store in self.weights.present():
                if store.master is not None:
                    store.mark_stale(store.rows)
            raise

    def _judge(self, header: list[int]) -> None:
        if not header:
            return
        count = len(self._order)
        _, digest, negative, *verdicts = header
        if digest + negative != 0:
            raise consensus.DisagreementError(
                f"FusedAdam: the ranks' groups differ in rounding or seed, and {self._way_out}"
            )
        for place, verdict, lacking in zip(
            self._order, verdicts[:count], verdicts[count:], strict=True
        ):
            if verdict == 0 and lacking:
                raise consensus.DisagreementError(
                    f"FusedAdam: of weight {place} of those fused together some ranks had a "
                    f"gradient of their shard and some had none, and {self._way_out}"
                )

    def begin(self) -> None:
        """Before the update: says of which shards this rank has no gradient, and takes columnwise
        bytes away that follow from rowwise ones.
        """
        for store in self.weights.present():
            # Columnwise bytes may be there that somebody has made since the last step.
            if store.late is None and store.format.columnwise_derived:
                columnwise.withhold(store, self._by_hand)
        self.weights.note_writes()
        self._exchange.begin()
        at = 0
        for table in self.tables:
            absent = [at + place for place in table.find_absent()]
            if absent and self.shared is not None:
                self._verdicts[absent] = _NOBODYS
                self._lacking[absent] = 1
            at += len(table)

    def listen(self) -> None:
        """After the step."""
        self._exchange.heard.listen(self.hear)

    def withdraw(self) -> None:
        """In the place of a step, on a rank that cannot take it: has the others fail."""
        self._exchange.withdraw()


def place_in(every: list[Updates], parameter: torch.Tensor) -> int | None:
    """Of a parameter in the lists that it is fused in; None if it is no flat shard."""
    return next((one.places[id(parameter)] for one in every if id(parameter) in one.places), None)


def _int32(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device="cpu")
