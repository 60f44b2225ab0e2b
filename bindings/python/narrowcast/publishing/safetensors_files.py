"""Writes safetensors files while tensors arrive: their places are known before, so that a few
threads copy tensors to the host and write them at the same time.
"""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import torch

_THREADS = 4  # and as many tensors are on their way at most
_DTYPES = {
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float64: "F64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e8m0fnu: "F8_E8M0",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.bool: "BOOL",
}


class Planned(NamedTuple):
    """A tensor that will come."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def size(self) -> int:
        """In bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


def write(folder: Path, planned: list[Planned], tensors: Iterable, most: int) -> None:
    """model.safetensors, or several files of at most so many bytes (or one tensor) each, and their
    index. `tensors`: (name, tensor) for each that is planned, in any order.
    """
    files = _split(planned, most)
    names = ["model.safetensors"]
    if len(files) > 1:
        count = len(files)
        names = [f"model-{at + 1:05}-of-{count:05}.safetensors" for at in range(count)]
    places: dict[str, tuple[int, int]] = {}
    weight_map = {}
    opened = []
    try:
        for name, its in zip(names, files, strict=True):
            descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT, 0o666)
            opened.append(descriptor)
            places |= {one: (descriptor, at) for one, at in _begin(descriptor, its).items()}
            weight_map |= {one.name: name for one in its}
        _write_all(tensors, places)
    finally:
        for descriptor in opened:
            os.close(descriptor)
    if len(files) > 1:
        metadata = {"total_size": sum(one.size for one in planned)}
        index = {"metadata": metadata, "weight_map": dict(sorted(weight_map.items()))}
        path = folder / "model.safetensors.index.json"
        path.write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _split(planned: list[Planned], most: int) -> list[list[Planned]]:
    files, size = [[]], 0
    for one in planned:
        if files[-1] and size + one.size > most:
            files.append([])
            size = 0
        files[-1].append(one)
        size += one.size
    return files


def _begin(descriptor: int, planned: list[Planned]) -> dict[str, int]:
    """Writes a file's header, and returns where each tensor begins. Those of wide elements are the
    first, so that all are aligned without gaps, which the format does not have.
    """
    ordered = sorted(planned, key=lambda one: -one.dtype.itemsize)
    header: dict[str, dict] = {"__metadata__": {"format": "pt"}}
    end = 0
    for one in ordered:
        span = [end, end := end + one.size]
        header[one.name] = {
            "dtype": _DTYPES[one.dtype],
            "shape": list(one.shape),
            "data_offsets": span,
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    os.pwrite(descriptor, len(text).to_bytes(8, "little") + text, 0)
    first = 8 + len(text)
    os.ftruncate(descriptor, first + end)
    return {one.name: first + header[one.name]["data_offsets"][0] for one in ordered}


def _write_all(tensors: Iterable, places: dict[str, tuple[int, int]]) -> None:
    room = threading.Semaphore(_THREADS)
    with ThreadPoolExecutor(_THREADS) as pool:
        jobs = []
        for name, tensor in tensors:
            room.acquire()
            ready = torch.cuda.Event() if tensor.is_cuda else None
            if ready is not None:
                ready.record()
            jobs.append(pool.submit(_write_one, tensor, ready, *places[name], room))
            del tensor
        for job in jobs:
            job.result()


def _write_one(tensor, ready, descriptor: int, at: int, room) -> None:
    try:
        if ready is not None:
            ready.synchronize()
        data = memoryview(tensor.reshape(-1).view(torch.uint8).cpu().numpy())
        while data:
            written = os.pwrite(descriptor, data, at)
            data, at = data[written:], at + written
    finally:
        room.release()
