"""The gather of flat shards: after a cast each rank has the bytes of its own elements, and gets
those of all others; then columnwise bytes that follow from rowwise ones are made.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist

from narrowcast import _C
from narrowcast.flat.shards import Ranges, checked_store
from narrowcast.tensor.store import PendingColumnwise, Store


class Gather:
    """Gathers the bytes of weights together, of any formats and on one device: a launch packs the
    bytes of this rank's elements, an all-gather brings those of all ranks, a launch unpacks them.
    Columnwise bytes that follow from rowwise ones are absent afterwards, as a cast leaves them.

        gather = Gather(weights, ranges, group)
        gather.start(async_op=True)
        ...
        gather.finish()

    weights   nc.QuantizedTensors, whole on every rank; the same list in one order on all ranks
    ranges    ranges[rank][weight]: (begin, end), the elements of the flattened weight that a rank
              of the group owns; exactly one rank owns an element
    group     the process group; None: this process alone. With one rank nothing moves

    TypeError if a weight is no QuantizedTensor. ValueError for views, weights without rowwise
    bytes, weights on several devices, and ranges that do not fit the weights.
    """

    def __init__(
        self, weights: Sequence[torch.Tensor], ranges: Ranges, group: dist.ProcessGroup | None
    ) -> None:
        self._weights, self._ranges, self._group = [*weights], ranges, group
        for place, weight in enumerate(weights):
            checked_store(f"weight {place}", weight)
        self._flat: _C.FlatGather | None = None
        if group is not None and dist.get_world_size(group) > 1 and self._weights:
            self._make()
        self._work: dist.Work | None = None
        self._payloads: tuple[torch.Tensor, torch.Tensor] | None = None  # own, and those of all

    def _make(self) -> None:
        matrices = [one._store.bytes for one in self._weights]
        self._flat = _C.FlatGather(matrices, self._ranges, dist.get_rank(self._group))

    @property
    def payload_bytes(self) -> int:
        """The bytes that each rank sends: as many as the largest part takes, rounded up to a
        multiple of 256; 0 if nothing moves.
        """
        return 0 if self._flat is None else self._flat.payload_bytes

    def start(self, async_op: bool = False) -> None:
        """Packs this rank's bytes and begins the all-gather, which is collective. `async_op` is
        torch.distributed's. Before finish() nothing may read the weights, no cast may change them,
        and they may get no other bytes (Module.to).
        """
        if self.payload_bytes == 0:
            return
        if not self._flat.is_of([one._store.bytes for one in self._weights]):
            self._make()
        size, device = self.payload_bytes, self._weights[0]._store.bytes.device
        own = torch.empty(size, dtype=torch.uint8, device=device)
        every = own.new_empty(len(self._ranges) * size)
        self._flat.pack(own)
        self._work = dist.all_gather_into_tensor(every, own, self._group, async_op=async_op)
        self._payloads = own, every

    def finish(self) -> None:
        """Waits for the all-gather and unpacks it. The current stream must be that of start(), or
        wait for it. Afterwards the weights have all their bytes.
        """
        if self.payload_bytes == 0:
            return
        if self._work is not None:
            self._work.wait()
        (_, every), self._payloads, self._work = self._payloads, None, None
        if every.is_cuda:  # its memory is of the stream of start()
            every.record_stream(torch.cuda.current_stream(every.device))
        self._flat.unpack(every)
        note_writes(self._weights)
        for store in (one._store for one in self._weights):  # a reader may have made some meanwhile
            invalidate_columnwise(store, store.pending is not None and store.pending.manual)


def note_writes(weights: Iterable[torch.Tensor]) -> None:
    """Weights have got other bytes: a backward that has saved one refuses to read it."""
    torch.autograd.graph.increment_version([one for one in weights if not one.is_inference()])


def invalidate_columnwise(store: Store, manual: bool) -> None:
    """Takes the columnwise bytes away, if the format derives them from rowwise ones, but not their
    memory: other ranks' rowwise bytes are not there yet. `manual`: post_all_gather_processing alone
    makes them again, not their first reader.
    """
    if store.pending is not None:
        store.pending = PendingColumnwise(store.pending.bytes, manual)
    elif store.format.columnwise_derived and store.bytes.has("columnwise"):
        both, spanning = store.bytes, (store.bytes.amax, store.bytes.history)
        rowwise = (*both.buffers[:2], None, None)
        store.bytes = _C.Buffers(store.format, store.rows, store.columns, rowwise, *spanning)
        store.pending = PendingColumnwise(both, manual)
        _C.note_change()


def post_all_gather_processing(weights: Iterable[torch.Tensor]) -> None:
    """Makes the columnwise bytes of nc.QuantizedTensors from rowwise bytes that were gathered after
    nc.quantize_master_weights: one launch for each format and device. Weights whose columnwise
    bytes are quantized from masters, or that have rowwise bytes alone, stay as they are.
    """
    together: dict[tuple, list[Store]] = defaultdict(list)
    for store in (weight._store for weight in weights):
        if store.pending is not None:
            together[store.format, store.bytes.device].append(store)
    for stores in together.values():
        _C.derive_columnwise([store.pending.bytes for store in stores])
        for store in stores:
            store.bytes, store.pending = store.pending.bytes, None
        _C.note_change()
