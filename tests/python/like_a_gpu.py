"""Reductions on the CPU whose ranks hear of each other when those of a GPU do."""

import contextlib

import torch

from narrowcast import heard
from narrowcast.zero import exchange


class FromGpu(heard.Heard):
    """As a GPU's: what ranks say is heard in the next call."""

    def __init__(self, header):
        super().__init__(header)
        self._pinned = torch.zeros_like(header)

    def fetch(self):
        self._pinned.copy_(self._source)

    def read(self):
        return self._pinned.tolist()


@contextlib.contextmanager
def hearing():
    """What ranks say in a call is heard in a later one."""
    exchange.Heard = FromGpu
    try:
        yield
    finally:
        exchange.Heard = heard.Heard
