"""In the place of narrowcast.zero.gather, until that is there: finds out who writes which bytes by
casting twice into poisoned memory, and gathers them.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from narrowcast.tensor import quantization as tensor
from narrowcast.tensor.store import Store
from narrowcast.zero.plan import Plan
from narrowcast.zero.shards import Shard


class Gather:
    def __init__(self, weights, ranges, group):
        self.weights, self.group = weights, group
        owners = [
            [_written(w, ranges, place, r) for r in range(group.size())]
            for place, w in enumerate(weights)
        ]
        self.places = [
            [torch.cat([of[rank] for of in owners]).nonzero()[:, 0]] for rank in range(group.size())
        ]
        self.places = [one[0] for one in self.places]
        self.size = max(map(len, self.places))
        self.payload_bytes = self.size
        self.work = self.whole = None

    def is_current(self):
        return True

    def start(self, async_op=False):
        own = self.places[self.group.rank()]
        flat = torch.cat([_bytes_of(one._store) for one in self.weights])
        packed = flat.new_zeros(self.size)
        packed[: len(own)] = flat[own]
        self.whole = flat.new_empty(self.size * self.group.size())
        self.work = dist.all_gather_into_tensor(self.whole, packed, self.group, async_op=async_op)

    def finish(self):
        if self.work is not None:
            self.work.wait()
        flat = torch.cat([_bytes_of(one._store) for one in self.weights])
        for rank, places in enumerate(self.places):
            flat[places] = self.whole[rank * self.size :][: len(places)]
        at = 0
        for weight in self.weights:
            for buffer in _buffers(weight._store):
                buffer.copy_(flat[at : at + buffer.numel()])
                at += buffer.numel()
        self.work = self.whole = None


def _buffers(store: Store):
    late = store.late is not None
    derived = store.format.columnwise_derived
    some = store.bytes.buffers[:2] if late or derived else store.bytes.buffers
    return [one.view(-1).view(torch.uint8) for one in some if one is not None]


def _bytes_of(store):
    return torch.cat(_buffers(store))


def _written(weight, ranges, place, rank):
    """bool, of all bytes: whether a cast of this rank's elements writes them."""
    begin, end = ranges[rank][place]
    store = weight._store
    results = []
    for poison in (0, 255):
        value = torch.zeros(store.rows, store.columns, device=store.bytes.device)
        copy = tensor.quantize(value, store.format.name, columnwise=_both(store))._store
        for buffer in _buffers(copy):
            buffer.fill_(poison)
        if begin < end:
            shards = [
                Shard(copy, of[place][0], of[place][1], value.view(-1)[of[place][0] : of[place][1]])
                for of in [ranges[rank]]
            ]
            plan = Plan(shards, [[of[place]] for of in ranges], None)
            plan.run([shard.master for shard in shards], False, None)
        results.append(_bytes_of(copy))
    return results[0] == results[1]


def _both(store):
    return store.late is not None or len(store.bytes.usages) == 2
