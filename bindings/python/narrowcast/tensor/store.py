"""What the views of one quantized matrix share: its bytes, and the master that they come from."""

from __future__ import annotations

import torch

from narrowcast import _C, errors
from narrowcast.registry import USAGES
from narrowcast.tensor import buffers, casting, compiling
from narrowcast.tensor.master import Draw, Master, Saved
from narrowcast.tensor.pending_columnwise import Late
from narrowcast.tensor.region import Region
from narrowcast.tensor.unaligned_shard import Place
from narrowcast.tensor.weight_config import UNNAMED, Label


class Store:
    """bytes    a _C.Buffers: a usage that is absent there is absent. Others may come, of the same
             format, rows and columns
    whole    all of the matrix, as a Region
    master   the value behind the bytes, or None if none is kept
    label    of the weight
    partial  it is part of a larger tensor, to which its amax belongs
    used     rows from this one on are the zeros that FSDP2 pads shards with
    is_cut   fully_shard has made shards of it, which have taken its place in the model
    present  of a weight whose gathers differ by pass: which usages have come, for graphs of
             torch.compile, which hold the buffers of all passes
    gather   of a gathered weight: the _C.WeightGather that brought it
    traced   what torch.compile has asked of it (narrowcast.tensor.serialize)
    late     after a cast of flat shards: a Late, until the columnwise bytes are made; else None
    sender   of a shard: a weak reference to the plan of its group's gathers, and its place there
    place    of a shard whose cuts divide blocks: a Place. `rows` are its own then, those of the
             master, and `bytes` has more; what others have of them is not there
    straddle of a matrix that fully_shard cuts in this way: the Place of the first shard
    """

    __slots__ = (
        *("bytes", "columns", "format", "gather", "is_cut", "label", "late", "master", "partial"),
        *("place", "present", "rows", "sender", "straddle", "traced", "used", "whole"),
        "__weakref__",
    )

    def __init__(
        self,
        bytes: _C.Buffers,
        master: Master | None = None,
        label: Label = UNNAMED,
        place: Place | None = None,
    ):
        self.bytes, self.master, self.label, self.place = bytes, master, label, place
        self.format, self.columns = bytes.format, bytes.columns
        self.rows = self.used = bytes.rows if place is None else place.end - place.row
        self.whole = Region(0, self.rows, 0, self.columns)
        self.partial, self.is_cut = place is not None, False
        self.present = self.gather = self.sender = self.traced = None
        self.late: Late | None = None
        self.straddle: Place | None = None

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All that is there: buffers, what spans the tensor, and the master."""
        master = None if self.master is None else self.master.value
        every = *self.bytes.buffers, self.bytes.amax, self.bytes.history, master
        return [one for one in every if one is not None]

    @property
    def step(self) -> tuple[int, int]:
        """The rows and the columns at whose multiples it can be cut. A view of a weight whose
        gathers differ by pass looks at both usages in turn.
        """
        return self.format.step(self.bytes.usages if self.present is None else USAGES)

    @property
    def is_stale(self) -> bool:
        master = self.master
        if master is None:
            return False
        if master.was_written:
            self.mark_stale(self.used)
        return master.stale

    @property
    def needs_others(self) -> bool:
        """Whether a cast of it needs what other ranks have: the amax of a tensor that this is part
        of, or what cuts divide.
        """
        return self.place is not None or (self.partial and self.format.tensor_amax)

    def describe(self) -> str:
        """For messages: the weight's name, if it has one, its size and its format."""
        name = f"{self.label.name}: " if self.label.name else ""
        return f"{name}{self.rows}x{self.columns} matrix in {self.format.name}"

    # ---- other stores of the same weight ----

    def room(self, rows: int, columns: int, usages, device) -> Store:
        """Undefined bytes of another size, and a master if this has one. ValueError if the format
        cannot hold the matrix.
        """
        bytes, master = buffers.allocate(self.format, rows, columns, usages, device), None
        if self.master is not None:
            master = Master(torch.empty(rows, columns, device=device, dtype=torch.float32))
        return self._over(bytes, master, rows)

    def map(self, function) -> Store:
        """The same matrix with function(tensor) for each tensor: in other memory."""
        self.check_there()
        self._complete()
        self.notice()
        master = self.master and self.master.like(function(self.master.value))
        copy = self._over(buffers.mapped(self.bytes, function), master, self.used, self.place)
        copy.straddle = self.straddle
        return copy

    def exchanged(self) -> Store:
        """The matrix with rows and columns exchanged, over the same buffers and a master of its
        own.
        """
        self.check_alone("have rows and columns exchanged")
        self._complete()
        self.notice()
        master = self.master and self.master.like(self.master.value.t().contiguous())
        return self._over(buffers.exchanged(self.bytes), master, self.columns)

    def _over(
        self, bytes: _C.Buffers, master: Master | None, used: int, place: Place | None = None
    ) -> Store:
        copy = Store(bytes, master, self.label, place)
        copy.partial, copy.used = self.partial, used
        return copy

    def check_alone(self, what: str) -> None:
        """ValueError if it shares blocks with the shards of other ranks."""
        if self.place is not None:
            raise ValueError(
                f"{self.describe()}: this shard shares blocks with those of other ranks, so it "
                f"cannot {what}. Use its value, which dequantize() makes, or its master"
            )

    def check_there(self) -> None:
        """ValueError if FSDP2 has freed the bytes. To copy what has been freed is a crash."""
        if self.gather is not None and self.bytes.is_freed:
            raise ValueError(
                f"{self.describe()}: its bytes have been freed, because FSDP2 has resharded its "
                "module. Use it within the module's forward or backward, or call the module's "
                "unshard() first"
            )

    # ---- values ----

    def high_precision(self, region: Region) -> torch.Tensor:
        """float32 [rows, columns]: the master, or the decoded value where none is kept."""
        if self.master is not None:
            return region.of(self.master.value)
        usage = "rowwise" if self.bytes.has("rowwise") else "columnwise"
        return self.dequantize(region, torch.float32, usage)

    def keep_master(self) -> None:
        """From now on there is a master: the decoded value, where none was kept."""
        if self.master is None:
            self.master = Master(self.high_precision(self.whole))

    def dequantize(self, region: Region, dtype: torch.dtype, usage: str) -> torch.Tensor:
        """The value of a region, [rows, columns] of float32, bfloat16 or float16."""
        if self.format.columnwise_derived and (_C.is_watched() or not self.bytes.is_plain):
            usage = self.bytes.usages[0]  # in a trace: both usages have the same values
        if self.place is not None:
            value = casting.decode(self.fresh(usage), dtype, usage)
            return region._replace(row=region.row + self.place.ahead).of(value)
        part = buffers.part(self.fresh(usage), region, (usage,))
        return casting.decode(part, dtype, usage, self.present)

    def fresh(self, usage: str) -> _C.Buffers:
        """The bytes, made anew if they are stale. ValueError if a usage is absent, or if this is a
        shard that cannot know its tensor's amax.
        """
        self.refresh()
        if self.bytes.has(usage):
            return self.bytes
        if self.late is not None:
            self._complete()
            return self.fresh(usage)
        if self.derives(usage):
            return _C.with_columnwise(self.bytes)
        raise errors.usage_absent(self, usage)

    def product_usage(self, backward: bool) -> str:
        """The usage that a product of a pass reads. ValueError if it is absent."""
        usage = self.bytes.product_usage(backward)
        if usage < 0:
            raise errors.usage_absent(self, USAGES[backward])
        return USAGES[usage]

    def derives(self, usage: str) -> bool:
        """Whether a usage is absent and follows from what a gather has brought: then it is made for
        whoever asks, in memory of its own, or where it was.
        """
        absent = (self.gather is not None or self.late is not None) and not self.bytes.has(usage)
        return absent and self.format.columnwise_derived

    def _complete(self) -> None:
        """Makes columnwise bytes that are late. ValueError where that is left to the caller."""
        if self.late is not None:
            self.bytes, self.late = self.late.made(self), None
            _C.note_change()

    def refresh(self) -> None:
        """Makes stale bytes anew. ValueError if FSDP2 has freed the bytes."""
        self.check_there()
        if not self.is_stale:
            return
        if self.needs_others:
            why = f"a scale of {self.format.name} spans the whole tensor"
            if self.place is not None:
                why = "it shares blocks with those of other ranks"
            raise ValueError(
                f"{self.describe()}: this shard has been written to, and {why}; so its bytes wait "
                "for the next gather (a forward, unshard()) or optimizer step, which reduces "
                "amaxes over all shards. Read it after one"
            )
        casting.cast_masters([self])

    def drop_master(self) -> None:
        """From now on there is none: the bytes alone are the value."""
        self.master = self.traced = None
        _C.note_change()

    def watch_master(self) -> None:
        """The master is handed out."""
        if self.master is not None:
            self.master.watch()

    def resume(self, history: torch.Tensor | None, draw: Draw | None) -> None:
        """The master is that of a saved state, whose bytes are to be made again: with its history,
        unless that is another format's, and rounded with its draw.
        """
        own = self.bytes.history
        if history is not None and (None in (self.master, own) or own.shape != history.shape):
            return
        if history is not None and history[0] == 0:  # saved after a write, before its cast
            self.mark_stale(self.used)
            return
        if history is not None:
            own.copy_(history)
        self.master.saved = Saved(draw)
        casting.publish(self)

    def notice(self) -> None:
        """Somebody else may have written to the master."""
        if self.master is not None and self.master.was_written:
            self.mark_stale(self.used)

    def mark_stale(self, end: int) -> None:
        """The master has changed, up to row `end`."""
        if not self.bytes.is_plain:
            compiling.check_write(self.describe())
        self.master.note()
        self.master.stale, self.master.saved = True, None
        _C.note_change()
        if self.bytes.history is not None:
            # A saved state says so too, even if no bytes are made before.
            self.bytes.history.zero_()
        self.used = max(self.used, end)
        casting.publish(self)
