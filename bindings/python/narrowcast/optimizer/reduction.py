"""The amaxes of shards whose tensors have one scale, found by all ranks of a process group in one
reduction: a maximum of floats, in which ranks also say who had gradients and who could not come.
"""

from __future__ import annotations

from itertools import chain

import torch
import torch.distributed as dist

from narrowcast import _C, consensus
from narrowcast.heard import Heard
from narrowcast.optimizer.entry import Entry
from narrowcast.tensor import casting

# What is reduced: which rank could not come (its number and 1; else 0, and only then are the amaxes
# used); the digest of what the optimizers must have alike, in halves that a float holds, and their
# negatives; a verdict for each parameter (0 if a rank had a gradient of it, else -1); its amax; and
# padding, so that ranks whose numbers of parameters differ a little still understand each other.
_HALF_BITS = 24
_HEADER = 1 + 4
_MULTIPLE = 4096
_ABSENT = -1.0  # a cast leaves alone what has a negative verdict


class Reduction:
    """Of the tables of one process group, with the entries of each. `facts`: what the optimizers of
    all ranks must have alike, a line each.
    """

    def __init__(self, process_group, tables: dict[_C.AdamTable, list[Entry]], facts: list[str]):
        self._process_group, self._facts, self._tables = process_group, facts, tables
        counts = [len(table) for table in tables]
        count, used = sum(counts), _HEADER + 2 * sum(counts)
        sizes = [_HEADER, count, count, -used % _MULTIPLE]
        silence = torch.zeros(sum(sizes), dtype=torch.float32, device="cpu")
        halves = _halves(consensus.digest(facts))
        silence[1:_HEADER] = torch.tensor(halves, dtype=torch.float32, device="cpu")
        device = next(iter(tables.values()))[0].store.bytes.device
        self._silence = silence.to(device)
        self._memory = torch.empty_like(self._silence)
        self._header, self._verdicts, self._amaxes, _ = self._memory.split(sizes)
        self._absent: list[_Absent] = []
        self._is_unheard = False
        self._heard = Heard(self._header)
        self.amaxes = self._amaxes.split(counts)  # of each table
        self.shared = _C.SharedAmaxes(self._memory, casting.reducer(self._memory, process_group))

    def hear(self) -> None:
        """DisagreementError, on all ranks, if the last reduction was not of all of them. Those of a
        GPU hear of it before the next step, and wait for nothing until then.
        """
        if self._is_unheard:
            self._is_unheard = False
            self._judge(self._heard.read())

    def begin(self) -> None:
        """Before the update: says which parameters have no gradient on this rank."""
        _C.copy_floats(self._memory, self._silence)
        self._absent, begin = [], 0
        for table, entries in self._tables.items():
            if places := table.find_absent():
                self._absent += _absent(entries, places, begin)
            begin += len(entries)
        for one in self._absent:
            self._verdicts[one.places] = _ABSENT
            self._amaxes[one.places] = one.casts.find_amaxes()
        self._is_unheard = True

    @property
    def lacks_gradients(self) -> bool:
        return bool(self._absent)

    def cast_absent(self) -> None:
        """One amax of all shards, whoever had a gradient: who had none casts with it as the others
        have done, if there was one on any rank.
        """
        for one in self._absent:
            one.cast(self._amaxes[one.places], self._verdicts[one.places])

    def listen(self) -> None:
        """After the step."""
        self._heard.listen(self.hear)

    def withdraw(self) -> None:
        """In the place of a step, on a rank that cannot take it: the others neither wait for it nor
        take its silence for consent.
        """
        _C.copy_floats(self._memory, self._silence)
        self._header[0] = dist.get_rank(self._process_group) + 1
        self._verdicts.fill_(_ABSENT)
        casting.reduce_over(self._memory, self._process_group)
        if not self._heard.is_at_once:
            self._is_unheard = True
            self._heard.fetch()

    def _judge(self, header: list[float]) -> None:
        failed, *digest = header
        differ = any(digest[i] + digest[i + 1] for i in (0, 2))
        if not failed and not differ:
            return
        for entry in chain.from_iterable(self._tables.values()):
            if entry.store.master is not None:
                entry.store.mark_stale(entry.store.rows)
        if differ and not failed:  # who has failed compares nothing
            device = self._memory.device
            consensus.check("parameters of FusedAdam", self._facts, self._process_group, device)
        rank = dist.get_process_group_ranks(self._process_group)[int(failed) - 1]
        raise consensus.DisagreementError(
            f"FusedAdam: rank {rank} could not take its part in a step, for which its own error "
            "gives the reason; the other ranks have updated their shards. Load a checkpoint on all "
            f"ranks, or go on, with rank {rank} a step behind: the next gather makes all bytes anew"
        )


def _halves(digest: int) -> list[float]:
    low, high = digest % 2**_HALF_BITS, (digest >> _HALF_BITS) % 2**_HALF_BITS
    return [float(sign * half) for half in (low, high) for sign in (1, -1)]


class _Absent:
    """Parameters of one table that have no gradient on this rank, and their places."""

    def __init__(self, entries: list[Entry], places: list[int]):
        self._stores = [entry.store for entry in entries]
        self._draws = [entry.last_draw for entry in entries]
        device = self._stores[0].bytes.device
        self.places = torch.tensor(places, device=device)
        self.casts = casting.casts_of(self._stores)

    def cast(self, amaxes: torch.Tensor, verdict: torch.Tensor) -> None:
        draws = None if self._draws[0] is None else self._draws
        if self._stores[0].format.is_delayed:
            self.casts.record(amaxes, verdict)
            self.casts.cast(None, draws=draws, verdict=verdict)
        else:
            self.casts.cast(amaxes, draws=draws, verdict=verdict)
        stale = [place for place, store in enumerate(self._stores) if store.is_stale]
        said = verdict.tolist() if stale else []
        for place in stale:
            if said[place] != _ABSENT:
                self._stores[place].master.settle()


def _absent(entries: list[Entry], places: list[int], begin: int) -> list[_Absent]:
    """Those of a table at some places, apart by whether they draw random words."""
    parts: dict[bool, list[int]] = {}
    for place in places:
        parts.setdefault(entries[place].last_draw is None, []).append(place)
    return [
        _Absent([entries[place] for place in some], [begin + place for place in some])
        for some in parts.values()
    ]
