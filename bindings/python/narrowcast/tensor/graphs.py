"""A QuantizedTensor in a graph of torch.compile: its facts, and a tensor of one byte, the key, by
which the graph's operators find its bytes when it runs (bindings/core/graph_key.hpp). In a trace a
weight has bytes on meta, for what the format says of them.
"""

import functools
import hashlib
from pathlib import Path

import torch
from torch._subclasses import FakeTensor

from narrowcast import _C, registry
from narrowcast.tensor import buffers, compiling
from narrowcast.tensor.gathered import GatheredStore
from narrowcast.tensor.region import matrix_shape
from narrowcast.tensor.serialize import flattened
from narrowcast.tensor.store import Store
from narrowcast.tensor.view import View


def flatten(tensor) -> tuple[list[str], tuple]:
    """The name of the key, and the facts, as __tensor_flatten__ returns them."""
    view, store = tensor._view, tensor._view.store
    if store.master is not None:
        store.refresh()
    known, key, facts = tensor._in_graphs
    if not view.is_whole or known != (store, store.config, store.partial):
        key, facts = view.graph_key, facts_of(view, tensor.dtype, flattened(tensor))
        tensor._in_graphs = (store, store.config, store.partial), key, facts
    return ["graph_key"], facts


def key_of(tensor) -> torch.Tensor:
    """By which the operators of a graph find the bytes."""
    if tensor._in_graphs[1] is None:
        flatten(tensor)
    return tensor._in_graphs[1]


def facts_of(view: View, dtype: torch.dtype, matrix: tuple[int, int] | None) -> tuple:
    """What a graph is made for. `matrix`: the rows and columns that a flat view keeps."""
    store, place = view.store, view.place and view.place[1:]  # the shape is torch's
    matrix = store.region.shape if place else matrix
    partial = store.partial or not (view.is_whole or place)
    # Weights that differ in their names alone share a graph, which shares no scales.
    config = store.config._replace(name=None, scale_group=None)
    usages = store.usages_of_passes if view.is_whole or place else tuple(view.usages)
    return store.format.name, dtype, partial, matrix, place, config, usages, store.by_pass


def unflatten(key: torch.Tensor, facts: tuple, shape) -> tuple[View, torch.dtype]:
    """The view and the logical dtype of what flatten() made, over another key."""
    format, dtype, partial, matrix, place, config, usages, by_pass = facts
    bytes = _C.bytes_of_key(key)
    if bytes is None:
        size = matrix or matrix_shape(shape)
        with compiling.without_modes():
            bytes = buffers.allocate(registry.format(format), *size, usages, torch.device("meta"))
    store = GatheredStore(bytes, config, None, True) if by_pass else Store(bytes, None, config)
    store.partial, store.graph_key = partial, key
    return View(store, place=place and (shape, *place)), dtype


# ---- what graphs in caches are known by ----


@functools.cache
def _code() -> str:
    """A digest of narrowcast's own code: which operators a graph has, and with which arguments,
    follows from all of it, and a version number does not change with every edit.
    """
    digest = hashlib.blake2b(digest_size=16)
    package = Path(__file__).resolve().parents[1]
    for file in sorted([*package.rglob("*.py"), Path(_C.__file__)]):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _code_and_formats(format: registry.Format) -> tuple[str, ...]:
    """The code, and the identities of the formats that a weight's products multiply."""
    partners = format.matmul and (format.matmul.input, format.matmul.gradient)
    loaded = {name for name in partners or () if name in registry.formats()}
    return _code(), *(registry.format(name).identity for name in sorted(loaded | {format.name}))


def is_fake(tensor) -> bool:
    """Whether it stands for another in a trace."""
    return isinstance(key_of(tensor), FakeTensor)


def stable_hash(tensor) -> str:
    """A digest of what a graph depends on: parts, facts and code."""
    names, context = tensor.__tensor_flatten__()
    parts = [(name, _key_of_part(getattr(tensor, name))) for name in names]
    facts = context, tensor.shape, tensor.requires_grad, tensor.is_inference(), parts
    every = repr((facts, _code_and_formats(tensor.format)))
    return hashlib.blake2b(every.encode(), digest_size=16).hexdigest()


def _key_of_part(part: torch.Tensor) -> str | tuple:
    if hasattr(part, "__tensor_flatten__"):
        return stable_hash(part)
    return part.shape, part.stride(), part.storage_offset(), part.dtype, part.device
