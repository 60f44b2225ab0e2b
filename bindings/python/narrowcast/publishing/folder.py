"""The folder that nc.export writes: beside its place until it is complete, and then in it."""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
import stat
from contextlib import suppress
from pathlib import Path

import torch
from safetensors.torch import save_file


class NewFolder:
    """begin(), add() of each tensor, finish(); discard() removes what has not got into its place.

    overwrite  whether a folder that is there is replaced; a link to it stays
    most       bytes of a safetensors file, which one tensor may exceed
    """

    def __init__(self, target: Path, overwrite: bool, most: float):
        self.target, self.overwrite, self.most = target, overwrite, most
        self._partial = self._old = None
        self._pending: dict[str, torch.Tensor] = {}
        self._names: list[list[str]] = []  # of each file
        self._size = self._total = 0

    def begin(self, texts: dict[str, str]) -> None:
        """With some files of text. FileExistsError for what is there."""
        target = self.target = Path(os.path.realpath(self.target))
        self._check_free()
        with suppress(FileExistsError):
            target.parent.mkdir(parents=True)
        partial = f".{target.name}.partial-{secrets.token_hex(8)}"  # another for each export
        self._partial, self._old = target.with_name(partial), target.with_name(f"{partial}-old")
        self._partial.mkdir()
        for name, text in texts.items():
            (self._partial / name).write_text(text, encoding="utf-8")

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
        """The last file, an index if there are several, and all of it into its place."""
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
        self._replace()

    def _replace(self) -> None:
        """What is there, or comes in between from other exports, goes away as a whole."""
        while True:
            try:
                self._partial.rename(self.target)  # where there is nothing, or an empty folder
                return
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
            self._check_free()
            shutil.rmtree(self._old, ignore_errors=True)
            with suppress(FileNotFoundError):  # another export has moved it
                self.target.rename(self._old)

    def _check_free(self) -> None:
        target = self.target
        with suppress(FileNotFoundError):
            is_folder = stat.S_ISDIR(target.lstat().st_mode)
            if not is_folder or (not self.overwrite and any(target.iterdir())):
                how = "name another place; overwrite=True replaces a folder"
                raise FileExistsError(f"{target} is there already: {how}")

    def discard(self) -> None:
        if self._partial is not None:
            if self._partial.exists():  # what was there goes back, if nothing has come
                shutil.rmtree(self._partial, ignore_errors=True)
                with suppress(OSError):
                    self._old.rename(self.target)
            shutil.rmtree(self._old, ignore_errors=True)
