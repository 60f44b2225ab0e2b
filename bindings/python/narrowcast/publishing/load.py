"""nc.load_published: published bytes into a converted model."""

from __future__ import annotations

import math
import os
import warnings
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from narrowcast import _C, ranks, registry
from narrowcast.master.casts import note_published
from narrowcast.publishing import encoding
from narrowcast.publishing import model as models
from narrowcast.publishing.encoding import LARGEST, Encoded, blocks_of, bytes_of
from narrowcast.publishing.folder import Folder, Match
from narrowcast.publishing.names import Rename, Slot
from narrowcast.tensor import buffers, casting, dtensors
from narrowcast.tensor.region import matrix_shape
from narrowcast.tensor.scale_groups import ScaleGroup

_ROUNDED = "e8m0", "F32"  # scales of a format and of a file that may have others
_SHOWN = 5  # problems in a message
# Of errors, as other ranks raise them: others' may need other arguments, or not be picklable.
_KINDS = FileNotFoundError, OSError, TypeError, ValueError, Exception


@torch.no_grad()
def load_published(
    model: nn.Module,
    folder: str | os.PathLike,
    *,
    layout: str | None = None,
    rename: Rename = None,
    nearest_scale: bool = False,
) -> list[str]:
    """Loads a folder of published weights into a converted model, byte for byte. Each rank reads
    its part, on any mesh. Masters become the decoded values. Only columnwise bytes that do not
    follow from rowwise ones are cast. A weight that is quantized in the folder and plain in the
    model is decoded.

    folder  its path. Its files are those that model.safetensors.index.json names, if that exists
    layout  as in nc.export; None: by quant_method in config.json
    rename  names of the model's tensors to names in the folder, as in nc.export
    nearest_scale
            of NVFP4, which keeps the amax of a tensor. True: if no amax has the global scale of a
            file, take the amax of the nearest scale, a unit in the last place away

    Every rank calls it. Returns the names in files that the model lacks. FileNotFoundError: there
    is no safetensors file. ValueError, with the model unchanged: a tensor is missing, has another
    shape or is in two files, a quantized tensor has another dtype or is described otherwise in
    config.json, a weight's format does not hold the bytes exactly, or a file or an index is
    damaged. The message names the found and the expected thing. Every rank raises the error of any
    rank.

    Call it after fully_shard and parallelize_module, because these cut values alone, of which the
    parts cast other bytes. A UserWarning says how many loaded bytes a cast of their values would
    change, and which format would keep more. Such a cut changes them, and so does the next write to
    the weight, a step with lr=0 too.
    """
    error, weights, source = None, [], None
    try:
        weights, source = _checked(model, Path(folder), layout, rename, nearest_scale)
    except Exception as one:
        error = one
    _raise_first(error, models.gather_device(next(model.parameters(), torch.empty(0))))
    for one in weights:
        one.load()
    _C.note_change()
    _warn_of_other_casts(weights)
    return sorted(set(source.names).difference(*(one.entry.names for one in weights)))


def _raise_first(error: Exception | None, device: torch.device) -> None:
    """An error of this rank or of another, on every rank: or one would load and another not."""
    group = dist.group.WORLD if dist.is_initialized() else None
    kind = next((one for one in _KINDS if isinstance(error, one)), None)
    for rank, told in enumerate(ranks.gather_objects(kind and (kind, str(error)), group, device)):
        if told is not None:
            is_own = told == (kind, str(error))
            raise error if is_own else told[0](f"rank {rank}: {told[1]}")


def _checked(model, folder: Path, layout, rename, nearest_scale: bool):
    """What is to be loaded, of which all is known to fit."""
    source = Folder(folder)
    entries = models.entries_of(model, source.layout(layout), rename=rename)
    own = {slot.name for one in entries for slot in one.slots if one.scheme is None}
    weights = [Published(one, source, own) for one in entries]
    problems = [(line, one) for one in weights for line in one.problems()]
    if problems := [*problems, *((line, None) for line in _scales_apart(weights))]:
        shown = "; ".join(line + (one.holders() if one else "") for line, one in problems[:_SHOWN])
        more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise ValueError(f"{folder} does not fit the model: {shown}{more}")
    for one in weights:
        one.check_values(nearest_scale)
    return weights, source


class Published(Match):
    """With the values."""

    def check_values(self, nearest_scale: bool) -> None:
        """ValueError if scales are there that the format has not; nothing is written."""
        entry = self.entry
        if entry.scheme is None:
            return
        if not self.is_plain:
            self._check_one_scale(nearest_scale)
        dtype = self.source.dtype(entry.names_of(entry.slots[0])["scales"])
        if entry.block == entry.format.rowwise.block and (entry.format.scale, dtype) != _ROUNDED:
            return
        try:
            if self.is_plain:
                for slot in entry.slots:
                    self._read(slot)
            else:
                encoded = self._encoded()
                self._buffers(encoded, len(encoded.codes), entry.store.columns)
        except ValueError as error:
            raise ValueError(f"{entry.name}: {error} ({entry.format.name})") from None

    def _check_one_scale(self, nearest_scale: bool) -> None:
        """ValueError if experts have scales of their own where the format has one for all, or if no
        amax has the global scale.
        """
        scheme, format = self.entry.scheme, self.entry.format
        if scheme.global_scale is None and self.entry.block != "tensor":
            return
        names = self.scale_names()
        scales = {self.source.tensor(name).item() for name in names}
        if len(scales) > 1:
            raise ValueError(
                f"{self.entry.name}: the {len(names)} layers that it holds have {len(scales)} "
                f"scales in the file ({names[0]}, ...), and {format.name} has one for all"
            )
        if scheme.global_scale is None:
            return
        scale = self.source.tensor(names[0]).reshape(())
        held = encoding.global_scale_of(encoding.amax_of(scale, format, scheme), format, scheme)
        if held != scale and not (nearest_scale and held.nextafter(scale) == scale):
            raise ValueError(
                f"{names[0]} is {scale:.9g}, and {format.name} keeps an amax, of which none "
                f"has that scale: the nearest has {held:.9g}. nearest_scale=True takes one that is "
                "a unit in the last place away"
            )

    def load(self) -> None:
        """This rank's part."""
        if self.is_plain:
            shape, offset = dtensors.box(self.tensor)
            part = tuple(slice(at, at + size) for at, size in zip(offset, shape, strict=True))
            dtensors.local_of(self.tensor.detach()).copy_(self._value()[part])
            return
        _C.note_write()
        encoding.decode_into(self.entry.store.bytes, self._encoded(), self.entry.scheme)
        _follow(self.entry.store)
        note_published(dtensors.local_of(self.tensor))

    def _value(self) -> torch.Tensor:
        """The whole of what is plain in the model."""
        slots, whole = self.entry.slots, tuple(self.tensor.shape)
        if self.entry.scheme is None and slots[0].size == slots[0].shape == whole:
            return self.source.tensor(slots[0].name)
        value = torch.empty(whole)
        for slot in slots:
            if self.entry.scheme is None:
                part = self.source.tensor(slot.name)[slot.begin : slot.end]
            else:
                (rows, columns), codes = matrix_shape(slot.size), self._read(slot)
                if self.entry.block != "tensor":
                    scales = codes.scales[torch.arange(rows) // self.entry.block[0]]
                    codes = codes._replace(scales=scales)
                made = self._buffers(codes, rows, columns)
                part = casting.decode(made, torch.float32, "rowwise").reshape(slot.size)
            slot.view(value).copy_(part)
        return value

    def _buffers(self, encoded: Encoded, rows: int, columns: int) -> _C.Buffers:
        """In memory of their own."""
        cpu = torch.device("cpu")
        made = buffers.allocate(self.entry.format, rows, columns, ("rowwise",), cpu)
        encoding.decode_into(made, encoded, self.entry.scheme)
        return made

    def _runs(self) -> tuple[list[range], range]:
        """The rows of the matrix whose bytes this rank has, and the columns."""
        shape, offset = dtensors.box(self.tensor)
        (count, width), (first, column) = shape[-2:], offset[-2:]
        if len(shape) > 2:
            experts = range(offset[0], offset[0] + shape[0])
            starts = [expert * self.tensor.shape[-2] + first for expert in experts]
        else:  # with those of other ranks in its blocks; FSDP2's padding ends with the file
            starts, count = [first - self.entry.store.rows_before], self.entry.store.bytes.rows
        rows = matrix_shape(self.tensor.shape)[0]
        return [range(at, min(at + count, rows)) for at in starts], range(column, column + width)

    def _encoded(self) -> Encoded:
        """Of all rows whose bytes this rank has: a run of rows of each of its experts."""
        (runs, columns), bits = self._runs(), self.entry.scheme.bits
        tops = [*accumulate(map(len, runs), initial=0)]
        codes = torch.empty(tops[-1], len(columns) * bits // 8, dtype=torch.uint8)
        there = self._read(self.entry.slots[0])  # what spans the tensor, of no rows too
        is_one = self.entry.block == "tensor"
        down, across = (1, 1) if is_one else self.entry.block
        wide = blocks_of(columns, columns.start, across).stop
        scales = there.scales if is_one else there.scales.new_empty(tops[-1], wide)
        for slot in self.entry.slots:
            place, is_exchanged = self.entry.region_of(slot)
            wide = _common(range(place.column, place.column_end), columns)
            first = bisect_right(runs, place.row, key=lambda run: run.stop)
            for top, run in zip(tops[first:], runs[first:], strict=False):
                rows = _common(range(place.row, place.row_end), run)
                if not rows or not wide:
                    break
                there = self._read(slot, is_exchanged)
                here = slice(top + rows.start - run.start, top + rows.stop - run.start)
                lines = torch.arange(rows.start, rows.stop) - place.row
                part = there.codes[lines, bytes_of(wide, place.column, bits)]
                codes[here, bytes_of(wide, columns.start, bits)] = part
                if not is_one:
                    part = there.scales[:, blocks_of(wide, place.column, across)][lines // down]
                    scales[here, blocks_of(wide, columns.start, across)] = part
        return Encoded(codes, scales, there.global_scale)

    def _read(self, slot: Slot, is_exchanged: bool = False) -> Encoded:
        """The elements of a slot, exchanged as the model has them; scales are those of blocks.
        ValueError if the format has no code for a scale.
        """
        names, block = self.entry.names_of(slot), self.entry.block
        there = {what: self.source.tensor(name) for what, name in names.items()}
        codes, scales = there["codes"].view(torch.uint8), there["scales"].reshape(-1)
        codes = codes.reshape(math.prod(slot.shape[:-1]), -1)
        each = math.prod(slot.shape[1:-1])  # rows
        codes = codes[slot.begin * each : slot.end * each]
        if block != "tensor":
            scales = scales.reshape(-1, -(-slot.shape[-1] // block[1]))
            each = len(scales) // slot.shape[0] if len(slot.shape) > 2 else 1 / block[0]
            scales = scales[int(slot.begin * each) : math.ceil(slot.end * each)]
        scales = encoding.scales_from(scales, self.entry.format)
        if is_exchanged:
            codes, scales = codes.t(), scales.t() if scales.dim() > 1 else scales
        return Encoded(codes, scales, there.get("global"))

    def casts(self) -> tuple[int, dict[str, int]]:
        """The bytes that are loaded, and how many a cast of their values changes, by the format of
        the cast; none if that leaves the values as they are.
        """
        bytes, scheme, changed = self.entry.store.bytes, self.entry.scheme, {}
        value = casting.decode(bytes, torch.float32, "rowwise")
        loaded = self._as_in_file(bytes)
        holding = [one for one in map(registry.format, registry.formats()) if scheme.holds(one)]
        for format in sorted(holding, key=lambda one: one != bytes.format):  # its own first
            made = buffers.allocate(format, *value.shape, ("rowwise",), value.device)
            _C.CastList([made], [value]).cast(bytes.amax)
            if not changed and torch.equal(value, casting.decode(made, torch.float32, "rowwise")):
                break
            changed[format.name] = sum(
                (one.view(torch.uint8) != other.view(torch.uint8)).sum().item()
                for one, other in zip(loaded, self._as_in_file(made), strict=True)
            )
        return sum(part.nbytes for part in loaded), changed

    def _as_in_file(self, bytes: _C.Buffers) -> tuple[torch.Tensor, torch.Tensor]:
        codes, scales, _ = encoding.encode(bytes, buffers.full_region(bytes), self.entry.scheme)
        return codes, scales[:: self.entry.block[0]]


def _common(one: range, other: range) -> range:
    return range(max(one.start, other.start), min(one.stop, other.stop))


def _scales_apart(weights: list[Published]) -> Iterator[str]:
    """Weights that have one scale in the model, and in the folder several."""
    groups: dict[ScaleGroup, dict[str, float]] = defaultdict(dict)
    for one in weights:
        group = None if one.is_plain else one.entry.store.config.scale_group
        if group is not None:
            name = one.scale_names()[0]
            if name in one.source.names and one.source.shape(name) in ((), (1,)):
                groups[group][name] = one.source.tensor(name).item()
    for scales in groups.values():
        if len(set(scales.values())) > 1:
            each = ", ".join(f"{name} is {scale:.9g}" for name, scale in scales.items())
            yield f"{each}, and the model has one for all: nc.convert(..., share_scale=False)"


def _warn_of_other_casts(weights: list[Published]) -> None:
    """Says how many loaded bytes a cast of their values would not give, where values would change,
    and which format would give more of them.
    """
    alike: dict[str, list] = defaultdict(list)  # by format
    for one in weights:
        # One scale of the tensor follows from all ranks' values.
        if one.is_plain or one.entry.store.master is None or one.entry.block == "tensor":
            continue
        loaded, casts = one.casts()
        if casts:
            alike[one.entry.format.name].append((one.entry.name, loaded, casts))
    for own, some in alike.items():
        names, loaded, casts = zip(*some, strict=True)
        counts = {name: sum(one[name] for one in casts) for name in casts[0]}
        best = min(counts, key=counts.get)
        better = f"{best} would keep all but {counts[best]}"
        warnings.warn(
            f"of the {sum(loaded)} bytes loaded into {names[0]} and {len(some) - 1} other weights "
            f"of {own}, {counts[own]} are not those of a cast of their values. They stay until the "
            "weight is written or cut, and the first step writes all: values then change by the "
            f"rounding of {own}. {better if best != own else 'no other fits them'}",
            stacklevel=3,
        )


def _follow(store) -> None:
    """Makes what follows from rowwise bytes: columnwise ones, the master, a history."""
    bytes, format = store.bytes, store.format
    value = casting.decode(bytes, torch.float32, "rowwise")
    if bytes.has("columnwise") and format.columnwise_derived:
        _C.derive_columnwise([bytes])
    elif bytes.has("columnwise"):
        columnwise = bytes.part(*buffers.full_region(bytes), ("columnwise",))
        _C.CastList([columnwise], [value]).cast(bytes.amax)
    if bytes.history is not None:
        bytes.history.zero_()
        bytes.history[:2] = 1 / bytes.buffer(1)
        # What the scale is for: as on the ranks of other shards, and of weights that share it.
        bytes.history[casting.NEWEST_AMAX] = LARGEST[format.element] * bytes.buffer(1)
    if store.master is not None:
        first = store.rows_before
        store.master.copy_(value[first : first + store.rows])
        store.mark_fresh()
