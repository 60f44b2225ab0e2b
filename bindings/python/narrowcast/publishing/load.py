"""nc.load_published: published bytes into a converted model."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

from narrowcast import _C, registry
from narrowcast.fsdp import sharding, torch_names
from narrowcast.publishing import encoding
from narrowcast.publishing import model as models
from narrowcast.publishing.encoding import LARGEST, Encoded
from narrowcast.publishing.files import Folder
from narrowcast.publishing.model import Entry, Piece, Rename
from narrowcast.registry import layouts
from narrowcast.registry.layouts import Scheme
from narrowcast.tensor import buffers, casting, dtensors
from narrowcast.tensor.scale_groups import ScaleGroup

_ONE = [], [1]  # shapes of one scale
_SHOWN = 5  # problems in a message
# What is taken for codes, and for scales by their kind: one value in several dtypes.
_CODES = {"U8", "I8", "F8_E4M3"}
_SCALES = {
    "f32": {"F32", "BF16", "F8_E8M0"},
    "e8m0": {"U8", "F8_E8M0", "F32"},
    "e4m3": {"F8_E4M3"},
}


@torch.no_grad()
def load_published(
    model: nn.Module,
    folder: str | os.PathLike,
    *,
    layout: str | None = None,
    rename: Rename = None,
    nearest_scale: bool = False,
) -> list[str]:
    """Loads a folder of published weights into a converted model, byte for byte: each rank reads
    its own part, on any mesh. The masters of weights become the decoded values. Nothing is cast but
    columnwise bytes that do not follow from rowwise ones.

    layout  as nc.export takes it; by default what quant_method in config.json says
    rename  names of the model's state dict to names in the folder, as nc.export takes it
    nearest_scale
            of NVFP4, which keeps the amax of a tensor: where no amax has the global scale of a
            file from elsewhere, takes the amax of the nearest one, a unit in the last place away

    Where there is a model.safetensors.index.json, files are those that it names. Returns the names
    in files that the model has not. FileNotFoundError without a safetensors file; ValueError, with
    the model unchanged, if a tensor is missing or of another shape, if a quantized one is of
    another dtype, if a weight's format does not hold the bytes exactly, with what is there and what
    was expected; also for a file or an index that is damaged, and for a tensor in two files.
    """
    source = Folder(Path(folder))
    layout = layout or source.layout()
    naming = models.renaming(rename)
    weights = [Published(one, source, layout, naming) for one in models.entries_of(model, layout)]
    problems = [line for one in weights for line in one.problems()]
    if problems := [*problems, *_scales_apart(weights)]:
        more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise ValueError(f"{folder} does not fit the model: {'; '.join(problems[:_SHOWN])}{more}")
    for one in weights:
        one.check_values(nearest_scale)
    for one in weights:
        one.load()
    _C.note_change()
    known = (models.names_of(one.entry, layout, naming) for one in weights)
    return sorted(set(source.names).difference(*known))


class Published:
    """A tensor of the model, beside what a folder has for it."""

    def __init__(self, entry: Entry, source: Folder, layout: str, naming):
        self.entry, self.source, self.layout, self.naming = entry, source, layout, naming
        self.tensor, self.scheme = entry.tensor, entry.scheme
        if self.scheme is None:
            return
        self.format = dtensors.local_of(self.tensor).format
        self.block = self.scheme.block_of(self.format)
        if layout == "deepseek":  # readers know two names of the scales
            named = (
                self.scheme._replace(scales=(one, "")) for one in ("weight_scale_inv", "scale")
            )
            self.scheme = next((one for one in named if self._is_there(one)), self.scheme)
        self.entry = entry._replace(scheme=self.scheme)
        self.pieces = models.pieces_of(self.entry, layout, naming)

    def _is_there(self, scheme: Scheme) -> bool:
        found = models.pieces_of(self.entry._replace(scheme=scheme), self.layout, self.naming)
        return found[0].names["scales"] in self.source.names

    def scale_names(self) -> list[str]:
        """Of the scale of the tensor, where it has one: in the folder each piece has it."""
        which = "scales" if self.scheme.global_scale is None else "global"
        return [one.names[which] for one in self.pieces]

    # ---- before anything is written ----

    def problems(self) -> Iterator[str]:
        """Tensors that are missing, of another shape, or of another dtype."""
        if self.scheme is None:
            yield from self._misfits(self.naming(self.entry.name), list(self.tensor.shape), None)
            return
        dtypes = {"codes": _CODES, "scales": _SCALES[self.format.scale], "global": {"F32"}}
        for piece in self.pieces:
            for what, name in piece.names.items():
                shape = list(models.shape_of(self.entry, piece, what, self.layout))
                for line in self._misfits(name, shape, dtypes[what]):
                    yield line + self._holders(piece.names)

    def _misfits(self, name: str, shape: list[int], dtypes: set[str] | None) -> Iterator[str]:
        if name not in self.source.names:
            yield f"{name} is missing"
            return
        there, dtype = list(self.source.shape(name)), self.source.dtype(name)
        if there != shape and not (shape in _ONE and there in _ONE):
            yield f"{name} is {there}, and {shape} was expected"
        elif dtypes is not None and dtype not in dtypes:
            yield f"{name} is {dtype}, and {' or '.join(sorted(dtypes))} was expected"

    def _holders(self, names: dict[str, str]) -> str:
        """The formats that would hold what is there."""
        if not set(names.values()) <= set(self.source.names):
            return ""
        codes, scales = (self.source.shape(names[one])[-2:] for one in ("codes", "scales"))
        holders = []
        for format in map(registry.format, registry.formats()):
            scheme = layouts.scheme_of(format, self.layout)
            columns = codes[-1] * 8 // format.rowwise.element_bits
            if scheme is None or columns != self.tensor.shape[-1]:
                continue
            block = scheme.block_of(format)
            if block == "tensor":
                fits = scales in ((), (1,))
            else:
                fits = scales == (-(-codes[0] // block[0]), -(-columns // block[1]))
            if fits:
                holders.append(format.name)
        return f" (formats that hold what is there: {', '.join(holders) or 'none'})"

    def check_values(self, nearest_scale: bool) -> None:
        """ValueError if scales are there that the format has not; nothing is written."""
        if self.scheme is None:
            return
        self._check_one_scale(nearest_scale)
        dtype = self.source.dtype(self.pieces[0].names["scales"])
        may_be_no_power = (self.format.scale, dtype) == ("e8m0", "F32")
        if self.block == self.format.rowwise.block and not may_be_no_power:
            return  # any scale can be stored
        encoded = self._encoded()
        cpu, (rows, columns) = torch.device("cpu"), (len(encoded.codes), self.entry.store.columns)
        self._set(buffers.allocate(self.format, rows, columns, ("rowwise",), cpu), encoded)

    def _check_one_scale(self, nearest_scale: bool) -> None:
        """ValueError if experts have scales of their own where the format has one for all, or if no
        amax has the global scale.
        """
        if self.scheme.global_scale is None and self.block != "tensor":
            return
        names = self.scale_names()
        scales = {self.source.tensor(name).item() for name in names}
        if len(scales) > 1:
            raise ValueError(
                f"{self.entry.name}: the {len(names)} layers that it holds have {len(scales)} "
                f"scales in the file ({names[0]}, ...), and {self.format.name} has one for all"
            )
        if self.scheme.global_scale is None:
            return
        scale = self.source.tensor(names[0]).reshape(())
        amax = encoding.amax_of(scale, self.format, self.scheme)
        held = encoding.global_scale_of(amax, self.format, self.scheme)
        if held != scale and not (nearest_scale and held.nextafter(scale) == scale):
            raise ValueError(
                f"{names[0]} is {scale:.9g}, and {self.format.name} keeps an amax, of which none "
                f"has that scale: the nearest has {held:.9g}. nearest_scale=True takes one that is "
                "a unit in the last place away"
            )

    # ---- values ----

    def load(self) -> None:
        """This rank's part."""
        if self.scheme is None:
            shape, offset = dtensors.box(self.tensor)
            part = tuple(slice(at, at + size) for at, size in zip(offset, shape, strict=True))
            value = self.source.tensor(self.naming(self.entry.name))[part]
            dtensors.local_of(self.tensor.detach()).copy_(value)
            return
        _, managed = torch_names.managed(self.tensor)
        if managed is not None:
            sharding.own_store(managed)  # or FSDP2 would copy the shards of short ranks
        _C.note_write()
        self._set(self.entry.store.bytes, self._encoded())
        _follow(self.entry.store)

    def _set(self, bytes: _C.Buffers, encoded: Encoded) -> None:
        try:
            encoding.decode_into(bytes, encoded, self.scheme)
        except ValueError as error:
            raise ValueError(f"{self.entry.name}: {error} ({self.format.name})") from None

    def _encoded(self) -> Encoded:
        """Of all rows whose bytes this rank has: a run of rows of each of its experts."""
        shape, offset = dtensors.box(self.tensor)
        (count, width), (first, column) = shape[-2:], offset[-2:]
        columns, experts, parts = slice(column, column + width), range(1), []
        size = self.pieces[0].rows  # of each
        if len(shape) > 2:
            experts = range(offset[0], offset[0] + shape[0])
        else:  # with those of other ranks in its blocks; FSDP2's padding ends with the file
            first -= self.entry.store.rows_before
            count = self.entry.store.bytes.rows
        for expert in experts:
            begin = expert * self.tensor.shape[-2] + first
            end = begin + count
            for piece in self.pieces[begin // size : -(-end // size)]:
                rows = slice(max(begin - piece.begin, 0), min(end - piece.begin, size))
                parts.append(self._read(piece, rows, columns))
        parts = parts or [self._read(self.pieces[0], slice(0, 0), columns)]
        if len(parts) == 1:
            return parts[0]
        codes, scales, global_scales = zip(*parts, strict=True)
        scales = scales[0] if self.block == "tensor" else torch.cat(scales)
        return Encoded(torch.cat(codes), scales, global_scales[0])

    def _read(self, piece: Piece, rows: slice, columns: slice) -> Encoded:
        """Some rows and columns of a piece."""
        there = {what: self.source.tensor(name) for what, name in piece.names.items()}
        bits = self.format.rowwise.element_bits
        codes = there["codes"].view(torch.uint8).reshape(piece.rows, -1)
        codes = codes[rows, columns.start * bits // 8 : columns.stop * bits // 8]
        if self.block == "tensor":
            return Encoded(codes, there["scales"].reshape(1), there.get("global"))
        down, across = self.block
        scales = there["scales"].reshape(-(-piece.rows // down), -1)
        scales = scales[_blocks(rows, down), _blocks(columns, across)]
        each = torch.arange(rows.start, rows.stop) // down - rows.start // down
        return Encoded(codes, encoding.scales_from(scales, self.format)[each], there.get("global"))


def _blocks(run: slice, size: int) -> slice:
    """The blocks that a run of rows or columns lies in."""
    return slice(run.start // size, -(-run.stop // size))


def _scales_apart(weights: list[Published]) -> Iterator[str]:
    """Weights that have one scale in the model, and in the folder several."""
    groups: dict[ScaleGroup, dict[str, float]] = defaultdict(dict)
    for one in weights:
        group = None if one.scheme is None else one.entry.store.config.scale_group
        if group is not None:
            name = one.scale_names()[0]
            if name in one.source.names and one.source.shape(name) in ((), (1,)):
                groups[group][name] = one.source.tensor(name).item()
    for scales in groups.values():
        if len(set(scales.values())) > 1:
            each = ", ".join(f"{name} is {scale:.9g}" for name, scale in scales.items())
            yield f"{each}, and the model has one for all: nc.convert(..., share_scale=False)"


def _follow(store) -> None:
    """Makes what follows from rowwise bytes: columnwise ones, the master, a history."""
    bytes, format = store.bytes, store.format
    value = casting.decode(bytes, torch.float32, "rowwise")
    if bytes.has("columnwise") and format.columnwise_derived:
        _C.derive_columnwise([bytes])
    elif bytes.has("columnwise"):
        columnwise = buffers.part(bytes, buffers.full_region(bytes), ("columnwise",))
        _C.CastList([columnwise], [value]).cast(bytes.amax)
    if bytes.history is not None:
        bytes.history.zero_()
        bytes.history[:2] = 1 / bytes.buffer(1)
        # What the scale is for: as on the ranks of other shards, and of weights that share it.
        bytes.history[casting.NEWEST_AMAX] = LARGEST[format.element] * bytes.buffer(1)
    if store.master is not None:
        first = store.rows_before
        store.master.value.copy_(value[first : first + store.rows])
        store.master.sync_version()
        store.master.mark_fresh()
    store.used = store.rows
