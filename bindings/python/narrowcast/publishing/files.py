"""A folder of safetensors files, of which each rank reads what it needs."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from narrowcast.publishing.configuration import Facts
from narrowcast.registry.layouts import LAYOUTS, METHODS


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
