"""The bytes of one quantized matrix and the master that they are made from. Every view of the
matrix has the same Store.

    Store            a matrix: a plain weight, or a shard that begins and ends between blocks
    UnalignedStore   a shard that shares blocks with other ranks (narrowcast.tensor.unaligned)
    GatheredStore    what an all-gather has brought, never written to (narrowcast.tensor.gathered)
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import NamedTuple

import torch

from narrowcast import _C
from narrowcast.registry import USAGES
from narrowcast.tensor import buffers, casting, compiling, scale_groups
from narrowcast.tensor.region import Region
from narrowcast.tensor.scale_groups import ScaleGroup


class WeightConfig(NamedTuple):
    """What a weight keeps through copies, pickling, sharding and gathers: its name, for messages,
    nc.convert's options, and with which weights it shares the scale of the tensor.
    """

    name: str | None = None
    recompute: bool | None = False  # None: as the first gather finds it
    matmul: str = "dequantized"
    scale_group: ScaleGroup | None = None


UNNAMED = WeightConfig()


class PendingColumnwise(NamedTuple):
    """Columnwise bytes that follow from rowwise ones, and are still to be made: a gather of flat
    shards brings rowwise bytes alone.

    bytes    both usages; the columnwise buffers have those of an earlier value
    manual   nc.post_all_gather_processing alone makes them, not the first reader
    """

    bytes: _C.Buffers
    manual: bool


class Store(_C.Store):
    """bytes           a _C.Buffers: a usage that is absent there is absent. Others may take its
                    place, of the same format, rows and columns
    rows, columns   of the matrix; `region`: all of it
    master          float32 [rows, columns]: the value that the bytes are made from, or None if
                    they alone are it. Torch's count of its writes tells whether they are stale
    config          of the weight
    partial         it is part of a larger tensor, to which its amax belongs
    pending         after a cast of flat shards: a PendingColumnwise, until the columnwise bytes are
                    made; else None
    sender          of a shard of FSDP2: a weak reference to its group's plan of gathers, and its
                    number there
    """

    __slots__ = (
        *("_graph_key", "columns", "config", "format", "partial", "pending", "region", "rows"),
        "sender",
    )
    by_pass = False  # of a GatheredStore alone
    # Of other ranks before its own, among the rows whose bytes it has. Of an UnalignedStore alone.
    rows_before = 0

    def __init__(
        self,
        bytes: _C.Buffers,
        master: torch.Tensor | None = None,
        config: WeightConfig = UNNAMED,
        rows: int | None = None,
    ):
        if master is not None and master.is_inference():  # torch counts no writes to it
            with torch.inference_mode(False), torch.no_grad():
                master = master.clone()
        super().__init__(bytes, master)
        self.config = config
        self.format, self.columns = bytes.format, bytes.columns
        self.rows = bytes.rows if rows is None else rows
        self.region = Region(0, self.rows, 0, self.columns)
        self.partial = False
        self.sender = self._graph_key = None
        self.pending: PendingColumnwise | None = None

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All that is there: buffers, what spans the tensor, and the master."""
        every = *buffers.tensors_of(self.bytes), self.master
        return [one for one in every if one is not None]

    @property
    def graph_key(self) -> torch.Tensor:
        """By which graphs of torch.compile know it (narrowcast.tensor.graphs)."""
        if self._graph_key is None:
            with compiling.without_modes() if self.bytes.is_plain else nullcontext():
                self._graph_key = _C.graph_key(self)
        return self._graph_key

    @graph_key.setter
    def graph_key(self, key: torch.Tensor) -> None:
        self._graph_key = key

    @property
    def device(self) -> torch.device:
        """Of a graph's, whose bytes are on meta, that of its key."""
        return self.bytes.device if self._graph_key is None else self._graph_key.device

    @property
    def is_traced(self) -> bool:
        """Whether it stands for another in a graph that is being made."""
        return self.bytes.device != self.device

    @property
    def usages_of_passes(self) -> tuple[str, ...]:
        """Those that forward and backward find."""
        return tuple(self.bytes.usages)

    @property
    def step(self) -> tuple[int, int]:
        """The rows and the columns at whose multiples it can be cut."""
        return self.format.step(self.bytes.usages)

    @property
    def needs_others(self) -> bool:
        """Whether a cast needs what other ranks have: a tensor's amax, or divided blocks."""
        return self.partial and self.format.tensor_amax

    def describe(self) -> str:
        """For messages: the weight's name, if it has one, its size and its format."""
        name = f"{self.config.name}: " if self.config.name else ""
        return f"{name}{self.rows}x{self.columns} matrix in {self.format.name}"

    # ---- other stores of the same weight ----

    def new_empty(self, rows: int, columns: int, usages, device) -> Store:
        """Undefined bytes of another size. ValueError if the format cannot hold the matrix."""
        bytes = buffers.allocate(self.format, rows, columns, usages, device)
        made = Store(bytes, None, self.config)
        made.partial = self.partial
        return made

    def map(self, function) -> Store:
        """The same matrix with function(tensor) for each tensor: in other memory."""
        self.check_not_freed()
        self._derive_pending()
        master = None if self.master is None else function(self.master)
        copy = self._over(buffers.mapped(self.bytes, function), master)
        copy.partial = self.partial
        if not self.is_stale:
            copy.mark_fresh()
        return copy

    def transposed(self) -> Store:
        """Rows and columns exchanged, over the same buffers."""
        self.check_aligned("have rows and columns exchanged")
        self.refresh()
        self._derive_pending()
        exchanged = Store(self.bytes.exchanged(), None, self.config)
        exchanged.partial = self.partial
        if self.is_traced:
            every = [*self.region]
            exchanged.graph_key = torch.ops.narrowcast.part(self.graph_key, every, True)
        return exchanged

    def _over(self, bytes: _C.Buffers, master: torch.Tensor | None) -> Store:
        """A store of the same rows over other bytes."""
        return Store(bytes, master, self.config)

    # ---- what other kinds of stores refuse ----

    def check_aligned(self, what: str) -> None:
        """ValueError, that it cannot `what`, if it shares blocks with the shards of other ranks."""

    def check_not_freed(self) -> None:
        """ValueError if FSDP2 has freed the bytes. To copy what has been freed is a crash."""

    def check_written(self) -> None:
        """ValueError if FSDP2 has freed the bytes, or if what is written would be lost."""
        self.check_not_freed()

    def note_arithmetic(self) -> None:
        """Arithmetic that is no product reads it under autograd: of a gathered weight it warns."""

    def check_copied(self) -> None:
        """ValueError in a trace where gathers differ by pass."""

    def usage_absent(self, usage: str) -> ValueError:
        """The error of a product or a decoding that needs bytes which are not there."""
        return ValueError(
            f"{self.describe()} has no {usage} bytes: ask for them where it is made "
            f"(nc.quantize(..., {usage}=True)); a part of a weight that FSDP2 has gathered has "
            "those of the other pass with nc.convert(..., recompute=True)"
        )

    # ---- values ----

    def high_precision(self, region: Region) -> torch.Tensor:
        """float32 [rows, columns]: the master, or the decoded value where none is kept."""
        if self.master is not None:
            return region.slice(self.master)
        usage = "rowwise" if self.bytes.has("rowwise") else "columnwise"
        return self.dequantize(region, torch.float32, usage)

    def dequantize(self, region: Region, dtype: torch.dtype, usage: str) -> torch.Tensor:
        """The value of a region, [rows, columns]: one launch, after a cast if it is stale."""
        if self.format.columnwise_derived and (_C.is_watched() or not self.bytes.is_plain):
            usage = self.bytes.usages[0]  # in a trace: both usages have the same values
        return self._decode(self.fresh(usage), region, dtype, usage)

    def _decode(self, bytes: _C.Buffers, region: Region, dtype, usage: str) -> torch.Tensor:
        if bytes.is_plain and not _C.is_watched():
            is_whole = region == buffers.full_region(bytes)
            part = bytes if is_whole else bytes.part(*region, (usage,))
            return part.decode(usage, dtype)
        arguments = casting.decoding(self.graph_key, bytes, dtype, usage, [])
        if region == self.region:
            return torch.ops.narrowcast.dequantize(*arguments)
        place = region.shape, (self.columns, 1), region.row * self.columns + region.column
        return torch.ops.narrowcast.dequantize(*arguments, *place)

    def fresh(self, usage: str) -> _C.Buffers:
        """The bytes, made anew if stale. ValueError as of refresh(), or if a usage is absent."""
        self.refresh()
        if not self.bytes.has(usage):
            self._derive_pending()
        if self.bytes.has(usage):
            return self.bytes
        if self.derives(usage):
            return _C.with_columnwise(self.bytes)
        raise self.usage_absent(usage)

    def product_usage(self, backward: bool) -> str:
        """The usage that a product of a pass reads. ValueError if it is absent."""
        usage = self.bytes.product_usage(backward)
        if usage < 0:
            raise self.usage_absent(USAGES[backward])
        return USAGES[usage]

    def derives(self, usage: str) -> bool:
        """Whether a usage is absent and follows from what a gather has brought: then it is made for
        each reader, in memory of its own, or where it was.
        """
        return self.pending is not None and self._follows(usage)

    def _follows(self, usage: str) -> bool:
        return self.format.columnwise_derived and not self.bytes.has(usage)

    def _derive_pending(self) -> None:
        """Makes pending columnwise bytes: one launch. ValueError if the caller is to do so."""
        if self.pending is None:
            return
        if self.pending.manual:
            raise ValueError(
                f"{self.describe()} has no columnwise bytes since its shards were cast: call "
                "nc.post_all_gather_processing when all have been gathered "
                "(manual_post_all_gather_processing=True leaves that to you)"
            )
        _C.derive_columnwise([self.pending.bytes])
        self.bytes, self.pending = self.pending.bytes, None
        _C.note_change()

    def refresh(self) -> None:
        """Makes stale bytes anew: one cast, with those of weights that share the scale. ValueError
        if FSDP2 has freed the bytes, or if the cast needs other ranks.
        """
        self.check_not_freed()
        group = None if self.master is None else self.config.scale_group
        if group is None and not self.is_stale:
            return
        stores = [self] if group is None else group.beside(self)
        stale = scale_groups.stale_of(stores)
        if not stale:
            return
        # While FSDP2 has gathered them, the module has others than its shards.
        is_apart = group is not None and len(stores) == 1 and self.sender is not None
        if is_apart or any(one.needs_others for one in stores):
            raise ValueError(
                f"{self.describe()}: this shard's value has no bytes yet, and its cast needs what "
                "other ranks have; so its bytes wait for the next gather (a forward, unshard()) or "
                "optimizer step. Read it after one"
            )
        if group is not None and len(stores) == 1:  # a copy in another place
            self.leave_group()
        casting.cast_masters(stale)

    def leave_group(self) -> None:
        """From now on it shares no scale."""
        self.config = self.config._replace(scale_group=None)

    def drop_master(self) -> None:
        """From now on there is none: the bytes alone are the value."""
        self.master = None
        self.mark_fresh()  # by no cast that could be repeated
        _C.note_change()
