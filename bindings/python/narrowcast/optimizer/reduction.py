"""The amaxes of shards whose tensors have one scale, found by all ranks of a process group in one
reduction: a maximum of floats, in which ranks also say who had gradients and who could not come.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from narrowcast import _C, consensus
from narrowcast.optimizer.entry import Entry
from narrowcast.tensor import casting

# What is reduced: which rank could not come (its number and 1, else 0); the digest of what the
# optimizers must have alike, in halves that a float holds, and their negatives; a verdict for each
# parameter (0 if a rank had a gradient of it, else -1); its amax; and padding, so that ranks whose
# numbers of parameters differ a little still understand each other.
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
        silence[1:_HEADER] = torch.tensor(_halves(consensus.digest(facts)), device="cpu")
        device = next(iter(tables.values()))[0].store.bytes.device
        self._silence = silence.to(device)
        self._memory = torch.empty_like(self._silence)
        self._header, self._verdicts, self._amaxes, _ = self._memory.split(sizes)
        self.amaxes = self._amaxes.split(counts)  # of each table
        self._absent: list[_Absent] = []
        # On a GPU the host hears of a reduction at the next step, and does not wait for it.
        self._pinned = torch.zeros(_HEADER, pin_memory=True) if device.type == "cuda" else None
        self._arrived: torch.cuda.Event | None = None

    def hear(self) -> None:
        """RuntimeError, on all ranks, if the last step's reduction has not been all ranks'."""
        if self._arrived is not None:
            arrived, self._arrived = self._arrived, None
            arrived.synchronize()
            self._judge(self._pinned.tolist(), "the step before this one")

    def begin(self) -> None:
        """Before the update: says which parameters have no gradient on this rank."""
        self._memory.copy_(self._silence)
        self._absent, begin = [], 0
        for table, entries in self._tables.items():
            if places := table.without_gradient():
                self._absent += _absent(entries, places, begin)
            begin += len(entries)
        for one in self._absent:
            self._verdicts[one.places] = _ABSENT

    def run(self) -> None:
        """After the update: one amax of all shards, whoever had a gradient. Who had none casts with
        it as the others do, if there was one on any rank.
        """
        try:
            for one in self._absent:
                self._amaxes[one.places] = one.casts.find_amaxes()
            casting.reduce_over(self._memory, self._process_group)
            self._listen()
            for one in self._absent:
                one.cast(self._amaxes[one.places], self._verdicts[one.places])
        except BaseException:
            for one in self._absent:
                one.mark_stale()
            raise

    def withdraw(self) -> None:
        """In the place of begin() and run(), on a rank whose step has failed before: the others
        neither wait for it nor take its silence for consent.
        """
        self._memory.copy_(self._silence)
        self._header[0] = dist.get_rank(self._process_group) + 1
        self._verdicts.fill_(_ABSENT)
        casting.reduce_over(self._memory, self._process_group)
        if self._pinned is not None:
            self._listen()

    def _listen(self) -> None:
        if self._pinned is None:
            self._judge(self._header.tolist(), "this step")
            return
        self._pinned.copy_(self._header, non_blocking=True)
        self._arrived = torch.cuda.Event()
        self._arrived.record()

    def _judge(self, header: list[float], when: str) -> None:
        failed, *digest = header
        if failed:
            rank = dist.get_process_group_ranks(self._process_group)[int(failed) - 1]
            raise RuntimeError(
                f"FusedAdam: rank {rank} could not take its part in {when}: its own error says why."
                " The other ranks have updated their masters. Load a checkpoint on all ranks, or "
                "go on knowing that this rank's shards are a step behind"
            )
        if any(digest[i] + digest[i + 1] for i in (0, 2)):
            device = self._memory.device
            consensus.check("parameters of FusedAdam", self._facts, self._process_group, device)


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

    def mark_stale(self) -> None:
        for store in self._stores:
            store.mark_stale(store.rows)


def _absent(entries: list[Entry], places: list[int], begin: int) -> list[_Absent]:
    """Those of a table at some places, apart by whether they draw random words."""
    parts: dict[bool, list[int]] = {}
    for place in places:
        parts.setdefault(entries[place].last_draw is None, []).append(place)
    return [
        _Absent([entries[place] for place in some], [begin + place for place in some])
        for some in parts.values()
    ]
