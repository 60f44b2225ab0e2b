"""Bytes of tensors that are alive, counted."""

import gc
import time

import torch
from torch import nn

SMALL = 4096  # biases, norms, amaxes and what a process keeps anyway


def storages():
    """The bytes of every storage of a plain tensor that is alive, by address."""
    gc.collect()
    found = {}
    for one in gc.get_objects():
        if type(one) in (torch.Tensor, nn.Parameter) and one.device.type != "meta":
            storage = one.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
    return found


def grown(before):
    return sum(size for address, size in storages().items() if address not in before)


def freed(before, kept=0):
    """Whether all that has come since is gone, but for what is kept. gloo's own threads let go of a
    collective's tensors a moment after it is done."""
    deadline = time.monotonic() + 10
    while grown(before) > kept + SMALL and time.monotonic() < deadline:
        time.sleep(0.05)
    return grown(before) <= kept + SMALL
