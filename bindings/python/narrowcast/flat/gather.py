"""The gather of flat shards: after a cast each rank has the bytes of its own elements, and gets
those of all others.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from narrowcast import _C
from narrowcast.flat import columnwise
from narrowcast.flat.shards import check_list, store_of
from narrowcast.flat.weights import Weights

Ranges = Sequence[Sequence[tuple[int, int]]]


class Gather:
    """Weights whose bytes are gathered together, of any formats and on one device: one launch
    packs what this rank owns, one all-gather brings what all own, one launch unpacks it. Data and
    scales are moved, without padding; scales that span a tensor, amax and history are on all ranks
    already. Columnwise bytes that follow from rowwise ones are `late` afterwards, as a cast leaves
    them: nc.post_all_gather_processing makes them, or the first who reads them.

        gather = Gather(weights, ranges, group)
        gather.start(async_op=True)
        ...
        gather.finish()

    weights   QuantizedTensors, whole on every rank; the same on all ranks, in the same order
    ranges    ranges[rank][weight]: the elements of the flattened weight that a rank owns, as
              (begin, end), of all ranks of the group; each element is one rank's
    group     the process group; None: this process alone. Of one rank nothing moves

    TypeError if one is no QuantizedTensor; ValueError for views, for weights without rowwise bytes
    of their own or on several devices, and for ranges that are not those of the weights.
    """

    def __init__(
        self,
        weights: Sequence[torch.Tensor],
        ranges: Ranges,
        group: dist.ProcessGroup | None,
    ) -> None:
        check_list("Gather", "weights", weights)
        check_list("Gather", "ranges", ranges)
        self.group = group if group is not None and dist.get_world_size(group) > 1 else None
        stores = [store_of(f"weight {place}", weight) for place, weight in enumerate(weights)]
        self._world = 1 if self.group is None else dist.get_world_size(self.group)
        if len(ranges) != self._world:
            raise ValueError(f"ranges of {len(ranges)} ranks, and a group of {self._world}")
        self._flat: _C.FlatGather | None = None
        if self.group is not None and stores:
            matrices = [store.bytes for store in stores]
            self._flat = _C.FlatGather(matrices, ranges, dist.get_rank(self.group))
        self._device = stores[0].bytes.device if stores else torch.device("cpu")
        self._weights = Weights("this gather", weights)
        self._is_started = False
        self._payloads: tuple[torch.Tensor, torch.Tensor] | None = None  # own, and those of all
        self._work: dist.Work | None = None

    @property
    def payload_bytes(self) -> int:
        """The bytes that each rank sends: those of the one that has most, to a multiple of 256. 0
        where nothing moves.
        """
        return 0 if self._flat is None else self._flat.payload_bytes

    def is_current(self) -> bool:
        """Whether the weights' buffers are those that it was made for. If not, make another: the
        ranges are still right, and the other ranks need not know.
        """
        return self._flat is None or self._flat.is_of(
            [one.bytes for one in self._weights.present()]
        )

    def start(self, async_op: bool = False) -> None:
        """Packs this rank's bytes and begins the all-gather, which is collective. async_op: as in
        torch.distributed; what the weights are used for then waits for finish(). Until that, no
        cast may change the weights.

        RuntimeError if it has been started and not finished; ValueError if buffers have moved.
        """
        if self._is_started:
            raise RuntimeError("this gather has been started: call finish() before start()")
        if not self.is_current():
            raise ValueError(
                "the buffers of a weight have moved or have been freed since this gather was made: "
                "make another gather"
            )
        if self.payload_bytes > 0:
            size = self.payload_bytes
            own = torch.empty(size, dtype=torch.uint8, device=self._device)
            every = torch.empty(self._world * size, dtype=torch.uint8, device=self._device)
            self._flat.pack(own)
            self._work = dist.all_gather_into_tensor(every, own, self.group, async_op=async_op)
            self._payloads = own, every
        self._is_started = True

    def finish(self) -> None:
        """Waits for the all-gather and unpacks it, on the current stream, which is that of start()
        or comes after it. Then the weights have all their bytes.

        RuntimeError if it has not been started; ValueError if buffers have moved meanwhile.
        """
        if not self._is_started:
            raise RuntimeError("this gather has not been started: call start() before finish()")
        work, payloads = self._work, self._payloads
        self._is_started, self._work, self._payloads = False, None, []
        if not payloads:
            return
        if work is not None:
            work.wait()
        _, every = payloads
        if every.is_cuda:  # its memory is of the stream of start()
            every.record_stream(torch.cuda.current_stream(every.device))
        self._flat.unpack(every)
        self._weights.note_writes()
        for store in self._weights.present():  # somebody may have read some in the meantime
            columnwise.withhold(store, store.pending is not None and store.pending.manual)
