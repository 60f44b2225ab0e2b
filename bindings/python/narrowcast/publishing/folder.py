"""The folder of published weights: as nc.export writes it, beside its place until it is complete,
and as nc.load_published finds it, with what it has for a tensor of a model.
"""

from __future__ import annotations

import functools
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from narrowcast import registry
from narrowcast.publishing import configuration
from narrowcast.publishing.configuration import Facts
from narrowcast.publishing.names import Entry
from narrowcast.registry import layouts
from narrowcast.registry.layouts import LAYOUTS, METHODS


class NewFolder:
    """begin(), add() of each tensor, finish(); discard() removes what has not got into its place.

    overwrite  whether a folder that is there is replaced; a link to it stays
    most       bytes of a safetensors file, which one tensor may exceed
    """

    def __init__(self, target: Path, overwrite: bool, most: float):
        self.target, self.overwrite, self.most = target, overwrite, most
        self._partial: Path | None = None
        self._pending: dict[str, torch.Tensor] = {}
        self._names: list[list[str]] = []  # of each file
        self._size = self._total = 0

    def begin(self, texts: dict[str, str]) -> None:
        """With some files of text. FileExistsError for what is there."""
        target = self.target = Path(os.path.realpath(self.target))
        is_free = target.is_dir() and (self.overwrite or not any(target.iterdir()))
        if os.path.lexists(target) and not is_free:
            how = "name another place; overwrite=True replaces a folder"
            raise FileExistsError(f"{target} is there already: {how}")
        with suppress(FileExistsError):
            target.parent.mkdir(parents=True)
        # Another name for each export.
        partial = target.with_name(f".{target.name}.partial-{secrets.token_hex(8)}")
        partial.mkdir()
        self._partial, self._old = partial, partial.with_name(f"{partial.name}-old")
        for name, text in texts.items():
            (partial / name).write_text(text, encoding="utf-8")

    def add(self, name: str, tensor: torch.Tensor) -> None:
        if self._pending and self._size + tensor.nbytes > self.most:
            self._write_file()
        self._pending[name] = tensor.cpu()
        self._size += tensor.nbytes

    def _write_file(self) -> None:
        path = self._partial / f"{len(self._names)}.safetensors"
        save_file(self._pending, path, metadata={"format": "pt"})
        path.chmod(self._partial.stat().st_mode & 0o666)  # safetensors: for the owner alone
        self._names.append(list(self._pending))
        self._total += self._size
        self._pending, self._size = {}, 0

    def finish(self) -> None:
        """The last file, an index if there are several, and all of it into the place of what is
        there.
        """
        self._write_file()
        index = {"metadata": {"total_size": self._total}, "weight_map": {}}
        for number, its_names in enumerate(self._names):
            name = f"model-{number + 1:05}-of-{len(self._names):05}.safetensors"
            name = name if len(self._names) > 1 else "model.safetensors"
            (self._partial / f"{number}.safetensors").rename(self._partial / name)
            index["weight_map"] |= dict.fromkeys(its_names, name)
        if len(self._names) > 1:
            text = json.dumps(index, indent=2) + "\n"
            (self._partial / "model.safetensors.index.json").write_text(text, encoding="utf-8")
        if self.overwrite and self.target.exists():
            self.target.rename(self._old)
        self._partial.rename(self.target)
        shutil.rmtree(self._old, ignore_errors=True)

    def discard(self) -> None:
        if self._partial is not None:
            shutil.rmtree(self._partial, ignore_errors=True)
            if self._old.exists() and not self.target.exists():
                self._old.rename(self.target)


# ---- one that is there: of its files each rank reads what it needs ----


class Folder:
    """names  of the tensors that are there, each with its file

    With an index, files that it names are read, and a tensor from the file that it names. Without
    one model.safetensors is read, or all files if that is not there.
    FileNotFoundError without a safetensors file; ValueError for a file that is cut short, missing
    or no file, for an index that is none, and for a tensor that is in two files.
    """

    def __init__(self, path: Path):
        self.path = path
        self.names: dict[str, safe_open] = {}
        index = self._index()
        for file in sorted(set(index.values())) or self._files():
            try:
                opened = safe_open(_regular(path / file), framework="pt")
            except (SafetensorError, OSError) as error:
                reason = f"is cut short or no safetensors file: {error}"
                raise ValueError(f"{path / file} {reason}") from None
            for name in opened.keys():  # noqa: SIM118 - it is no dict
                if name in self.names and name not in index:
                    raise ValueError(
                        f"{name} is in {path / file} and in another file of the folder, and no "
                        "index says which is the model's: remove the other file"
                    )
                if index.get(name, file) == file:
                    self.names[name] = opened
        for name, file in index.items():
            if name not in self.names:
                raise ValueError(f"{path / file} has no {name}, which the index says is there")

    def _files(self) -> list[str]:
        files = sorted(one.name for one in self.path.glob("*.safetensors"))
        if not files:
            raise FileNotFoundError(f"{self.path} has no safetensors file")
        return [one for one in files if one == "model.safetensors"] or files

    def _index(self) -> dict[str, str]:
        """The file of each tensor; empty without an index."""
        path = self.path / "model.safetensors.index.json"
        if not path.exists():
            return {}
        try:
            index = json.loads(_regular(path).read_text(encoding="utf-8"))["weight_map"]
            files = [Path(one) for one in index.values()]
            if not files:
                raise ValueError("it is empty")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"{path} has no weight_map of tensors to files: {error!r}") from None
        for file in files:
            if file.is_absolute() or ".." in file.parts:
                raise ValueError(f"{path} names {file}, which is outside of the folder")
        return index

    def layout(self, given: str | None) -> str:
        """The one that is given, or that of config.json. ValueError if that does not say, or says
        another.
        """
        there = METHODS.get(self.configuration.get("quant_method"))
        if there is None and given is None:
            raise ValueError(
                f"{self.path / 'config.json'} has no quantization_config whose quant_method is one "
                f"of {', '.join(METHODS)}: say layout=, one of {', '.join(LAYOUTS)}"
            )
        if given not in (None, there) and there is not None:
            raise ValueError(f"{self.path / 'config.json'} is of layout {there!r}, not {given!r}")
        return given or there

    @functools.cached_property
    def configuration(self) -> dict:
        """The quantization_config of config.json; empty without."""
        try:
            text = _regular(self.path / "config.json").read_text(encoding="utf-8")
            config = json.loads(text)["quantization_config"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return {}
        return config if isinstance(config, dict) else {}

    @functools.cached_property
    def facts(self) -> Facts:
        return Facts(self.configuration)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.names[name].get_slice(name).get_shape())

    def dtype(self, name: str) -> str:
        """As safetensors names it: F32, U8, F8_E4M3, ..."""
        return self.names[name].get_slice(name).get_dtype()

    def tensor(self, name: str) -> torch.Tensor:
        """A view of the file: what is read of it is read then."""
        return self.names[name].get_tensor(name)


def _regular(path: Path) -> Path:
    """ValueError for what is no file: a pipe would be waited for."""
    if not path.is_file():
        raise ValueError(f"{path} is missing, or no regular file")
    return path


# ---- what it has for a tensor: by names, shapes, dtypes and config.json, before any value ----

_ONE = [], [1]  # shapes of one scale
_PLAIN = {"F32", "BF16", "F16"}  # of values
# What is taken for codes, by the dtype that readers expect, and for scales by their kind: one value
# in several dtypes.
_CODES = {"float8_e4m3fn": {"F8_E4M3"}, "int8": {"I8", "U8"}, "uint8": {"U8"}}
_SCALES = {
    "f32": {"F32", "BF16", "F8_E8M0"},
    "e8m0": {"U8", "F8_E8M0", "F32"},
    "e4m3": {"F8_E4M3"},
}


class Match:
    """A tensor of the model, beside what a folder has for it.

    entry     of the tensor; where that is plain, and the folder has codes for it, as a format has
              them that holds those
    is_plain  whether it is plain in the model
    own       names in files of all plain tensors of the model
    """

    def __init__(self, entry: Entry, source: Folder, own: set[str]):
        self.source, self.tensor, self.entry = source, entry.tensor, entry
        self.is_plain, self._foreign = entry.scheme is None, ""
        if not self.is_plain:
            named = ((one, one.names_of(one.slots[0])["scales"]) for one in _named(entry))
            self.entry = next((one for one, scales in named if self.has([scales])), entry)
        elif codes := self._codes_of(entry, own):
            holding = (one for one in self._holding() if one.format.rowwise.block == one.block)
            self._foreign, self.entry = codes, next(holding, entry)

    def has(self, names: list[str]) -> bool:
        return all(name in self.source.names for name in names)

    def scale_names(self) -> list[str]:
        """Of the scale of the tensor, where it has one: in the folder each slot has it."""
        which = "scales" if self.entry.scheme.global_scale is None else "global"
        return [self.entry.names_of(slot)[which] for slot in self.entry.slots]

    def _candidates(self) -> Iterator[Entry]:
        """The tensor in each format of the layout, under each name of its scales."""
        entry = self.entry
        for format in map(registry.format, registry.formats()):
            scheme = layouts.scheme_of(format, entry.layout)
            if scheme is None or self.tensor.dim() < 2:
                continue
            one = entry._replace(scheme=scheme, format=format, slots=entry.layers)
            with suppress(ValueError):  # of a format whose blocks cannot be taken apart there
                for slot in one.slots:
                    one.region_of(slot)
                yield from _named(one)

    def _holding(self) -> Iterator[Entry]:
        return (one for one in self._candidates() if next(self._misfits_of(one), None) is None)

    def _codes_of(self, entry: Entry, own: set[str]) -> str:
        """What the folder has for a plain tensor that is no value."""
        there = self.source.names
        for name in [slot.name for slot in entry.slots if slot.name in there]:
            if entry.tensor.is_floating_point() and self.source.dtype(name) not in _PLAIN:
                return f"{name} is {self.source.dtype(name)}"
        beside = {name for one in self._candidates() for name in one.names if name not in own}
        return min((name for name in beside if name in there), default="")

    def problems(self) -> Iterator[str]:
        """Tensors that are missing, of another shape, of another dtype, or described otherwise."""
        if self.entry.scheme is not None:
            yield from self._misfits_of(self.entry)
        elif self._foreign:
            yield (
                f"{self.entry.name} is plain in the model, and in the folder {self._foreign}: no "
                f"loaded format has that in layout {self.entry.layout!r}"
            )
        else:
            for slot in self.entry.slots:
                yield from self._misfits(slot.name, list(slot.shape), None)

    def _misfits_of(self, entry: Entry) -> Iterator[str]:
        dtypes = {"codes": _CODES[entry.scheme.codes[1]], "scales": _SCALES[entry.format.scale]}
        for slot in entry.slots:
            for what, name in entry.names_of(slot).items():
                shape = list(entry.shape_of(what, slot.shape))
                yield from self._misfits(name, shape, dtypes.get(what, {"F32"}))
        for layer in configuration.layers_of(entry):
            yield from configuration.contradictions(self.source.facts, entry.layout, layer)

    def _misfits(self, name: str, shape: list[int], dtypes: set[str] | None) -> Iterator[str]:
        if not self.has([name]):
            yield f"{name} is missing"
            return
        there, dtype = list(self.source.shape(name)), self.source.dtype(name)
        if there != shape and not (shape in _ONE and there in _ONE):
            yield f"{name} is {there}, and {shape} was expected"
        elif dtypes is not None and dtype not in dtypes:
            yield f"{name} is {dtype}, and {' or '.join(sorted(dtypes))} was expected"

    def holders(self) -> str:
        """The formats that would hold what is there."""
        if self.entry.scheme is None or not self.has(self.entry.names):
            return ""
        fitting = ", ".join(one.format.name for one in self._holding())
        return f" (formats that hold what is there: {fitting or 'none'})"


def _named(entry: Entry) -> list[Entry]:
    """With each name that readers know for its scales."""
    if entry.layout != "deepseek":
        return [entry]
    every = [("weight_scale_inv", entry.scheme.scales[1]), ("scale", entry.scheme.scales[1])]
    return [entry._replace(scheme=entry.scheme._replace(scales=one)) for one in every]
