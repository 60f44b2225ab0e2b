"""The bytes of a quantized matrix, and the high-precision value that they come from."""

from __future__ import annotations

import torch

from narrowcast import _C, buffers, casting, errors
from narrowcast.registry import BUFFERS, COLUMNWISE_DATA, USAGES, Format, buffers_of


class Matrix:
    """A matrix in a format: what a QuantizedTensor looks at, or several that are views of one.

    rows, columns  of the matrix, whatever the tensor's rank
    buffers        rowwise data and scales, columnwise data and scales (shapes:
                   Format.buffer_shape); None where absent
    amax           float32 (1,), in formats with a scale that spans the tensor
    master         float32 (rows, columns), what the bytes are made from; None if it is not kept
    name           of the weight, for messages
    recompute      nc.convert's option
    filled         the usages whose bytes are there: a gathered weight may have room for both and
                   bytes for one
    used           rows from this one on are the zeros that FSDP2 pads shards with
    partial        it is part of a larger tensor, to which its amax belongs
    shards         into how many FSDP2 has cut it
    stale          the master has changed since the bytes were made
    initializing   a function of nn.init is at work on the master
    plan           what FSDP2's hooks have worked out (narrowcast.fsdp)
    """

    __slots__ = (
        *("format", "rows", "columns", "buffers", "amax", "master", "name", "recompute", "filled"),
        *("used", "partial", "shards", "stale", "initializing", "plan"),
    )

    def __init__(self, format: Format, rows: int, columns: int, tensors, amax=None, master=None):
        self.format, self.rows, self.columns = format, rows, columns
        self.buffers, self.amax, self.master = tuple(tensors), amax, master
        self.name, self.recompute, self.plan = None, False, None
        self.filled = set(self.usages)
        self.used, self.partial, self.shards = rows, False, 1
        self.stale = self.initializing = False

    @classmethod
    def allocate(
        cls, format: Format, rows: int, columns: int, usages, device, *, master: bool = False
    ) -> Matrix:
        """Room for some usages, with undefined bytes. ValueError if the format cannot hold the
        matrix.
        """
        room = buffers.allocate(format, rows, columns, usages, device)
        amax = torch.zeros(1, dtype=torch.float32, device=device) if format.tensor_amax else None
        value = torch.empty(rows, columns, device=device, dtype=torch.float32) if master else None
        return cls(format, rows, columns, room, amax, value)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All that is there: buffers, amax and master."""
        candidates = (*self.buffers, self.amax, self.master)
        return [tensor for tensor in candidates if tensor is not None]

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
        mapped = [None if buffer is None else function(buffer) for buffer in self.buffers]
        amax = None if self.amax is None else function(self.amax)
        master = None if self.master is None else function(self.master)
        copy = Matrix(self.format, self.rows, self.columns, mapped, amax, master).inherit(self)
        copy.filled, copy.used, copy.partial = set(self.filled), self.used, self.partial
        copy.stale, copy.initializing = self.stale, self.initializing
        return copy

    def part(self, begin: int, rows: int) -> Matrix:
        """A copy of some rows, as a matrix of their own."""
        if begin == 0 and rows == self.rows:
            return self.map(torch.clone)
        part = Matrix.allocate(
            *(self.format, rows, self.columns, self.usages, self.device),
            master=self.master is not None,
        ).inherit(self)
        part.copy_rows(0, self, begin, rows)
        part.partial = True
        return part

    def zeros(self, rows: int, columns: int, device) -> Matrix:
        """A matrix of zeros in this one's format, usages and options.

        FSDP2 begins a shard with it. So a derived columnwise is left out, because that of a shard
        is never gathered; and where this is the whole tensor and the new one has the size of its
        shards, what spans the tensor is taken over.
        """
        derived = self.format.columnwise_derived and "rowwise" in self.usages
        usages = ["rowwise"] if derived else self.usages
        master = self.master is not None
        zeros = Matrix.allocate(self.format, rows, columns, usages, device, master=master)
        zeros.inherit(self)
        buffers.fill_with_zeros(self.format, rows, columns, zeros.buffers)
        if master:
            zeros.master.zero_()
        zeros.used, zeros.partial = 0, self.partial
        if self.shards > 1 and rows == -(-self.rows // self.shards):
            zeros.partial = True
            zeros.copy_spanning(self)
        return zeros

    # ---- rows ----

    @property
    def step(self) -> int:
        """The rows at whose multiples it can be cut."""
        derived = self.format.columnwise_derived and self.buffers[COLUMNWISE_DATA] is not None
        return self.format.row_step if derived else self.format.shard_row_step

    def check_cut(self, row: int) -> None:
        """ValueError unless it can be cut above `row`."""
        if row % self.step != 0 and row < self.used:
            raise errors.cannot_cut(self, row)

    def rows_of(self, buffer: int, begin: int, rows: int) -> torch.Tensor:
        """The entries of some rows: a view that writes through; all of them with the padding."""
        if begin == 0 and rows == self.rows:
            return self.buffers[buffer]
        return buffers.rows_of(self.buffers[buffer], self.format.cuts[buffer], begin, rows)

    def canonical(self, buffer: int, begin: int, rows: int) -> torch.Tensor | None:
        """The buffer of a matrix of these rows alone: a view where that has the same bytes, else a
        copy.
        """
        if self.buffers[buffer] is None:
            return None
        shape = self.format.buffer_shape(buffer, rows, self.columns)
        used = self.format.used_shape(buffer, rows, self.columns)
        return buffers.padded(self.rows_of(buffer, begin, rows), shape, used)

    def master_rows(self, begin: int, rows: int) -> torch.Tensor | None:
        return None if self.master is None else self.master.narrow(0, begin, rows)

    def copy_rows(self, begin: int, source: Matrix, source_begin: int, rows: int) -> None:
        """Copies rows of a matrix of the same format, byte for byte, in the usages that both have,
        and the master, if this one has it.
        """
        for buffer, cut in enumerate(self.format.cuts):
            if self.buffers[buffer] is None or source.buffers[buffer] is None or cut.dimension < 0:
                continue
            target = self.rows_of(buffer, begin, rows)
            origin = source.rows_of(buffer, source_begin, rows)
            # One of them may be a whole buffer, with its padding.
            used = buffers.corner(map(min, target.shape, origin.shape))
            target[used] = origin[used]
        self.copy_spanning(source)
        if self.master is not None:
            self.master_rows(begin, rows).copy_(source.high_precision(source_begin, rows))
        self.filled = set(self.usages)
        self.used = max(self.used, begin + rows)
        self.partial = self.partial or source.partial or rows < source.used
        if source.stale:
            self.mark_stale(begin + rows)
            self.initializing = source.initializing

    def copy_spanning(self, source: Matrix) -> None:
        """Copies what spans the tensor: its amax, and per-tensor scales."""
        if self.amax is not None:
            self.amax.copy_(source.amax)
        for target, origin, cut in zip(self.buffers, source.buffers, self.format.cuts, strict=True):
            if cut.dimension < 0 and target is not None and origin is not None:
                target.copy_(origin)

    # ---- values ----

    def high_precision(self, begin: int, rows: int) -> torch.Tensor:
        """float32 [rows, columns]: the master, or the decoded value where none is kept."""
        if self.master is not None:
            return self.master_rows(begin, rows)
        usage = "rowwise" if "rowwise" in self.filled else "columnwise"
        return self.dequantize(begin, rows, torch.float32, usage)

    def write(self, begin: int, value: torch.Tensor) -> None:
        """Sets rows to a value, [rows, columns] of float32, bfloat16 or float16. With a master,
        that is set and the bytes become stale; without, they are made at once.
        """
        end = begin + len(value)
        if self.master is not None:
            self.master[begin:end] = value
            self.mark_stale(end)
        elif len(value) == self.rows and not (self.partial and self.format.tensor_amax):
            casting.cast_value(self, value)
            self.used = self.rows
        else:
            raise errors.cannot_write(self, begin, end)

    def mark_stale(self, end: int) -> None:
        """The master has changed, up to row `end`."""
        self.stale = True
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

    def dequantize(self, begin: int, rows: int, dtype: torch.dtype, usage: str) -> torch.Tensor:
        """The value of some rows, [rows, columns] of float32, bfloat16 or float16."""
        self.require(usage)
        value = torch.empty(rows, self.columns, dtype=dtype, device=self.device)
        if value.is_meta:
            return value
        wanted = buffers_of(usage)
        given = tuple(
            self.canonical(buffer, begin, rows) if buffer in wanted else None for buffer in BUFFERS
        )
        described = (rows, self.columns, value, given, self.amax)
        stream = casting.stream_of(value.device)
        _C.dequantize(self.format.plugin, usage == "columnwise", [described], stream)
        return value
