"""A folder of safetensors files, of which each rank reads what it needs."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from narrowcast.registry.layouts import LAYOUTS, METHODS


class Folder:
    """names  of the tensors that are there, each with its file

    FileNotFoundError without a safetensors file; ValueError if one is cut short or missing.
    """

    def __init__(self, path: Path):
        self.path = path
        self.names: dict[str, safe_open] = {}
        files = sorted(path.glob("*.safetensors"))
        if not files:
            raise FileNotFoundError(f"{path} has no safetensors file")
        for file in files:
            try:
                opened = safe_open(file, framework="pt")
            except (SafetensorError, OSError) as error:
                raise ValueError(f"{file} is cut short or no safetensors file: {error}") from None
            self.names |= dict.fromkeys(opened.keys(), opened)
        for name, file in self._index().items():
            if name not in self.names:
                raise ValueError(f"{path} has no {name}, which its index says is in {file}")

    def _index(self) -> dict[str, str]:
        index = self.path / "model.safetensors.index.json"
        if not index.exists():
            return {}
        return json.loads(index.read_text(encoding="utf-8"))["weight_map"]

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
            text = (self.path / "config.json").read_text(encoding="utf-8")
            config = json.loads(text)["quantization_config"]
        except (OSError, ValueError, KeyError, TypeError):
            return {}
        return config if isinstance(config, dict) else {}

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.names[name].get_slice(name).get_shape())

    def dtype(self, name: str) -> str:
        """As safetensors names it: F32, U8, F8_E4M3, ..."""
        return self.names[name].get_slice(name).get_dtype()

    def tensor(self, name: str) -> torch.Tensor:
        """A view of the file: what is read of it is read then."""
        return self.names[name].get_tensor(name)
