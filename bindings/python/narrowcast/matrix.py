"""The bytes of a quantized matrix, and the high-precision value that they come from."""

from __future__ import annotations

from itertools import zip_longest

import torch

from narrowcast import buffers, casting, errors, library, spanning
from narrowcast.box import Box, whole_box
from narrowcast.registry import BUFFERS, USAGES, Format, buffers_of, other_usage
from narrowcast.spanning import SPANNING


class Matrix:
    """A matrix in a format: what a QuantizedTensor looks at, or several that are views of one.

    rows, columns  of the matrix, whatever the tensor's rank
    buffers        rowwise data and scales, columnwise data and scales (shapes:
                   Format.buffer_shape); None where absent
    amax           float32 (1,), in formats with a scale that spans the tensor
    history        float32, of delayed scaling: the multiplier behind the present bytes, that of the
                   next update, and the amaxes of the last casts, the newest first; zeros until a
                   new master's bytes are made
    master         float32 (rows, columns), what the bytes are made from; None if it is not kept
    name           of the weight, for messages
    recompute      nc.convert's option
    filled         the usages whose bytes are there: a gathered weight may have room for both and
                   bytes for one
    used           rows from this one on are the zeros that FSDP2 pads shards with
    partial        it is part of a larger tensor, to which its amax belongs
    shards         into how many FSDP2 has cut it
    stale          the master has changed since the bytes were made
    saved          a casting.Saved: the stale bytes are those of a saved state, not new ones
    initializing   a function of nn.init is at work on the master
    awaited        torch.compile looks at it, and a usage comes with a later gather
    plan           what FSDP2's hooks have worked out (narrowcast.fsdp)
    """

    __slots__ = (
        *("format", "rows", "columns", "buffers", *SPANNING, "master", "name", "recompute"),
        *("filled", "used", "partial", "shards", "stale", "saved", "initializing", "awaited"),
        "plan",
    )

    def __init__(self, format: Format, rows: int, columns: int, tensors, *spanning, master=None):
        self.format, self.rows, self.columns = format, rows, columns
        self.buffers, self.master = tuple(tensors), master
        for name, tensor in zip_longest(SPANNING, spanning):
            setattr(self, name, tensor)
        self.name, self.recompute, self.plan, self.saved = None, False, None, None
        self.filled = set(self.usages)
        self.used, self.partial, self.shards = rows, False, 1
        self.stale = self.initializing = self.awaited = False

    @classmethod
    def allocate(
        cls, format: Format, rows: int, columns: int, usages, device, *, master: bool = False
    ) -> Matrix:
        """Room for some usages, with undefined bytes. ValueError if the format cannot hold the
        matrix.
        """
        room = buffers.allocate(format, rows, columns, usages, device)
        beside = spanning.allocate(format, device)
        value = torch.empty(rows, columns, device=device, dtype=torch.float32) if master else None
        return cls(format, rows, columns, room, *beside, master=value)

    @property
    def spanning(self) -> list[torch.Tensor | None]:
        """What belongs to the whole tensor, in the order of SPANNING."""
        return [getattr(self, name) for name in SPANNING]

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All that is there: buffers, what spans the tensor, and the master."""
        candidates = (*self.buffers, *self.spanning, self.master)
        return [tensor for tensor in candidates if tensor is not None]

    @property
    def whole(self) -> Box:
        return whole_box(self.rows, self.columns)

    @property
    def device(self) -> torch.device:
        return self.tensors[0].device

    @property
    def usages(self) -> list[str]:
        """The usages that there is room for."""
        return [usage for usage in USAGES if self.buffers[buffers_of(usage)[0]] is not None]

    def describe(self) -> str:
        """For messages: the weight's name, if it has one, its size and its format."""
        name = f"{self.name}: " if self.name else ""
        return f"{name}{self.rows}x{self.columns} matrix in {self.format.name}"

    # ---- other matrices like this one ----

    def inherit(self, parent: Matrix) -> Matrix:
        """Takes over what a weight keeps through copies: its name and option."""
        self.name, self.recompute = parent.name, parent.recompute
        return self

    def map(self, function) -> Matrix:
        """The same matrix with function(tensor) for each tensor: in other memory."""

        def mapped(tensor):
            return None if tensor is None else function(tensor)

        every = map(mapped, (*self.buffers, *self.spanning))
        master = mapped(self.master)
        buffers, spanning = [next(every) for _ in BUFFERS], every
        copy = Matrix(self.format, self.rows, self.columns, buffers, *spanning, master=master)
        return copy.inherit(self)._resume(self)

    def exchanged(self) -> Matrix:
        """The matrix with rows and columns exchanged, over the same buffers and a master of its
        own. Only where the format's usages mirror each other.
        """
        master = None if self.master is None else self.master.t().contiguous()
        mirrored = self.buffers[2:] + self.buffers[:2]
        copy = Matrix(
            *(self.format, self.columns, self.rows, mirrored, *self.spanning), master=master
        )
        copy.inherit(self)._resume(self)
        copy.filled, copy.used = {other_usage(usage) for usage in self.filled}, copy.rows
        return copy

    def _resume(self, source: Matrix) -> Matrix:
        """Takes over what is known of the bytes."""
        self.filled, self.used, self.partial = set(source.filled), source.used, source.partial
        self.stale, self.initializing = source.stale, source.initializing
        self.saved = source.saved
        return self

    # ---- boxes ----

    @property
    def step(self) -> tuple[int, int]:
        """The rows and the columns at whose multiples it can be cut."""
        return self.format.step(self.usages)

    def piece(self, buffer: int, box: Box) -> torch.Tensor:
        """The entries of a box: a view that writes through; of the whole with the padding."""
        if box == self.whole or (box.is_empty and self.format.cuts[buffer].dimension < 0):
            return self.buffers[buffer]
        if box.is_empty:
            return self.buffers[buffer].new_empty(self.format.used_shape(buffer, *box.shape))
        return buffers.narrowed(self.buffers[buffer], self.format.stored_box(buffer, box))

    def canonical(self, buffer: int, box: Box) -> torch.Tensor | None:
        """The buffer of a matrix of this box alone: a view where that has the same bytes, else a
        copy.
        """
        if self.buffers[buffer] is None:
            return None
        shape = self.format.buffer_shape(buffer, *box.shape)
        used = self.format.used_shape(buffer, *box.shape)
        return buffers.padded(self.piece(buffer, box), shape, used)

    def copy_entries(self, box: Box, source: Matrix, source_box: Box) -> None:
        """Copies a box of another matrix's buffers, in the usages that both have: all but the
        scales that span the tensor.
        """
        for buffer, cut in enumerate(self.format.cuts):
            if self.buffers[buffer] is None or source.buffers[buffer] is None or cut.dimension < 0:
                continue
            target, origin = self.piece(buffer, box), source.piece(buffer, source_box)
            # One of them may be a whole buffer, with its padding.
            used = buffers.corner(map(min, target.shape, origin.shape))
            target[used] = origin[used]

    # ---- values ----

    def high_precision(self, box: Box) -> torch.Tensor:
        """float32 [rows, columns]: the master, or the decoded value where none is kept."""
        if self.master is not None:
            return box.of(self.master)
        usage = "rowwise" if "rowwise" in self.filled else "columnwise"
        return self.dequantize(box, torch.float32, usage)

    def write(self, box: Box, value: torch.Tensor) -> None:
        """Sets a box to a value, [rows, columns] of float32, bfloat16 or float16. With a master,
        that is set and the bytes become stale; without, they are made at once. The value that a
        saved state has just brought changes nothing: its bytes may be others than a new value's.
        """
        if self.saved is not None and _same_bits(box.of(self.master), value):
            return
        if self.master is not None:
            box.of(self.master).copy_(value)
            self.mark_stale(box.row_end)
        elif box == self.whole and not (self.partial and self.format.tensor_amax):
            casting.cast_value(self, value)
            self.used = self.rows
        elif not self.format.tensor_amax:  # a box is of whole blocks, each with its own scales
            part = Matrix.allocate(self.format, *box.shape, self.usages, self.device)
            casting.cast_value(part, value)
            self.copy_entries(box, part, part.whole)
            self.filled, self.used = set(self.usages), max(self.used, box.row_end)
        else:
            raise errors.cannot_write(self, box)

    def mark_stale(self, end: int) -> None:
        """The master has changed, up to row `end`."""
        self.stale, self.saved = True, None
        if self.history is not None:
            self.history.zero_()  # a saved state says so too, even if no bytes are made before
        self.used = max(self.used, end)
        casting.count_stale()

    def refresh(self) -> None:
        """Makes stale bytes anew. ValueError on a shard that cannot know its tensor's amax."""
        if not self.stale:
            return
        if self.partial and self.format.tensor_amax:
            raise errors.stale_shard(self)
        casting.cast_masters([self])

    def require(self, usage: str) -> None:
        """Sees to it that the bytes of a usage are there. ValueError if they cannot be."""
        data = self.buffers[buffers_of(usage)[0]]
        if data is None:
            raise errors.usage_absent(self, usage)
        if data.numel() and data.untyped_storage().nbytes() == 0:
            raise errors.freed(self)
        self.refresh()
        if usage == "columnwise" and self.format.columnwise_derived and self.filled == {"rowwise"}:
            casting.derive_columnwise(self)
        if usage not in self.filled:
            raise errors.usage_not_gathered(self, usage)

    def dequantize(self, box: Box, dtype: torch.dtype, usage: str) -> torch.Tensor:
        """The value of a box, [rows, columns] of float32, bfloat16 or float16."""
        self.require(usage)
        data, scale = (self.canonical(buffer, box) for buffer in buffers_of(usage))
        return library.dequantize(
            self.format.name, usage, *box.shape, data, scale, self.amax, dtype
        )


def _same_bits(value: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether float32 values are those of another tensor, signs of zeros and NaNs included."""
    other = other.to(value.device, torch.float32)
    return torch.equal(*(one.contiguous().view(torch.int32) for one in (value, other)))
