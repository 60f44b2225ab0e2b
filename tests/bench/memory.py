"""Bytes, counted: those of a model's shards, and those that a process holds."""

import gc
import time

import torch
from torch import nn
from torch.distributed.tensor import DTensor

import narrowcast as nc

CONVERTED = nc.QuantizedTensor, nc.MasterWeight
SMALL = 2**12  # bytes: a loss, a step count


def quantized_weights(model):
    """This rank's shards of the quantized weights."""
    locals_ = (p.to_local() if isinstance(p, DTensor) else p for p in model.parameters())
    return [local for local in locals_ if isinstance(local, CONVERTED)]


def shard_bytes(model) -> int:
    """What this rank stores of the quantized weights besides their values."""
    buffers = [one for w in quantized_weights(model) for one in w._store.bytes.buffers]
    return sum(one.nbytes for one in buffers if one is not None)


def held(device: str) -> int:
    """Bytes that tensors hold: what CUDA's allocator has given out, or on the CPU the storages of
    all plain tensors that Python can reach.
    """
    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()
    storages = {}
    for one in gc.get_objects():
        if type(one) in (torch.Tensor, nn.Parameter) and one.device.type == "cpu":
            storage = one.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def settled(device: str, expected: int, seconds: float = 2) -> int:
    """held(), once it has come down to about what is expected, or does not: gloo's own threads let
    go of a collective's tensors a moment after it is done.
    """
    deadline = time.monotonic() + seconds
    while (now := held(device)) > expected + SMALL and time.monotonic() < deadline:
        time.sleep(0.02)
    return now
