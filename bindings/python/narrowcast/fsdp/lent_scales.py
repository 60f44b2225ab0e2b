"""Scales that span frozen weights, on ranks that have no rows of them. A load brings a rank what it
has rows of, so the others lend those ranks their scales, which decode what a gather brings.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from narrowcast import _C
from narrowcast.fsdp import torch_names
from narrowcast.tensor import buffers, casting, dtensors
from narrowcast.tensor.store import Store

_NO_WORD = torch.iinfo(torch.int32).min


class LentScales:
    """Of the weights of some groups, remembered until the shards are others."""

    def __init__(self, groups: list):
        self._lists: dict[dist.ProcessGroup, list[Store]] = {}
        for parameter, store in (one for group in groups for one in torch_names.quantized(group)):
            spans = store.partial and store.format.tensor_amax
            is_bare = store.master is None and store.bytes.is_plain
            if spans and is_bare and _has_empty(parameter):
                group = torch_names.process_group(parameter)
                self._lists.setdefault(group, []).append(store)

    def lend(self) -> None:
        """Collective, if there are any."""
        for process_group, stores in self._lists.items():
            _C.note_write()
            spanning = [(one, store.used == 0) for store in stores for one in _spanning(store)]
            words = torch.cat([_words(one, is_borrowed) for one, is_borrowed in spanning])
            casting.reduce_over(words, process_group)
            parts = words.split([one.numel() for one, _ in spanning])
            for (one, is_borrowed), part in zip(spanning, parts, strict=True):
                if is_borrowed:
                    # A graph that has saved them for its backward shall have those of now.
                    with torch.autograd._unsafe_preserve_version_counter(one):
                        one.copy_(_from_words(part, one.dtype).view_as(one))


def _has_empty(parameter) -> bool:
    """Whether a rank has no rows: the last one, if any."""
    rows = torch_names.whole_shape(parameter)[torch_names.cut_dimension(parameter)]
    return dtensors.leaves_empty(rows, torch_names.world(parameter))


def _spanning(store: Store) -> list[torch.Tensor]:
    return [one for one in buffers.spanning_of(store.bytes) if one is not None]


def _words(tensor: torch.Tensor, is_borrowed: bool) -> torch.Tensor:
    """The bits as int32: those who lend have equal ones, and a reduction of floats may lose NaN."""
    flat = tensor.flatten()
    words = flat.view(torch.int32) if flat.itemsize == 4 else flat.view(torch.uint8).int()
    return torch.full_like(words, _NO_WORD) if is_borrowed else words


def _from_words(words: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return (words if dtype.itemsize == 4 else words.to(torch.uint8)).view(dtype)
