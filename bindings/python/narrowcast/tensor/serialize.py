"""A QuantizedTensor as plain tensors and facts, and back: for pickling and torch.compile, whose
caches outlive processes and know graphs by keys.
"""

import functools
import hashlib
from pathlib import Path
from typing import NamedTuple

import torch
from torch._subclasses import FakeTensor

from narrowcast import _C, registry
from narrowcast.tensor import buffers
from narrowcast.tensor.gathered import GatheredStore
from narrowcast.tensor.region import matrix_shape
from narrowcast.tensor.store import Store
from narrowcast.tensor.view import View

# The tensors of a QuantizedTensor, by their attributes' names.
BUFFERS = ("rowwise_data", "rowwise_scale_inv", "columnwise_data", "columnwise_scale_inv")
SPANNING = ("tensor_amax", "history")
# As torch.compile knows them; and which usages have come, of a weight whose gathers differ by pass:
# its buffers are those of all passes, for a graph is one for all.
INNER = tuple(f"_inner_{name}" for name in (*BUFFERS, *SPANNING, "present"))


def arguments_of(tensor) -> tuple:
    """The arguments of narrowcast.tensor.rebuild: format, shape, dtype, the tensors (None where
    absent), name, recompute, partial, the rows and columns that a flat view keeps, requires_grad,
    whether it is a parameter, and matmul.
    """
    view, config = tensor._view, tensor._view.store.config
    view.store.check_aligned(
        "be saved by itself. It can be left out of a sharded checkpoint "
        "(StateDictOptions(ignore_frozen_params=True)), or saved in a full one "
        "(full_state_dict=True), or be its own master (nc.convert(..., trainable=True))"
    )
    facts = view.store.format.name, tuple(tensor.shape), tensor.dtype
    partial = view.store.partial or not view.is_whole
    options = config.name, config.recompute, partial, flattened(tensor)
    is_parameter = isinstance(tensor, torch.nn.Parameter)
    tensors = buffers.tensors_of(view.operand())
    return *facts, tensors, *options, tensor.requires_grad, is_parameter, config.matmul


def flattened(tensor) -> tuple[int, int] | None:
    """The rows and columns that a flat view keeps; None of any other tensor."""
    return tensor._view.region.shape if tensor.is_flat else None


# ---- torch.compile ----


class Traced(NamedTuple):
    """The tensors of a store that torch.compile asks for at every call, several times in each pass:
    those that INNER names, None where absent. `known`: until a change is noted, of whichever store.
    `key`: by which a tensor knows it, and does not keep what it holds.
    """

    key: object
    known: tuple
    inner: list[torch.Tensor | None]


def flatten(tensor) -> tuple[list[str], tuple]:
    """The names of the tensors that are there, and the rest, as __tensor_flatten__ returns them."""
    view, (key, flat) = tensor._view, tensor._taken_apart
    store = view.store
    store.refresh()
    traced, known = store.traced, (_C.changes(), store.config, store.partial)
    is_known = traced is not None and traced.known == known
    if is_known and traced.key is key:
        return flat
    inner = inner_tensors(tensor)
    names = [name for name, one in zip(INNER, inner, strict=True) if one is not None]
    matrix = flattened(tensor) if view.place is None else store.region.shape
    place = view.place and view.place[1:]  # the shape is torch's
    partial = store.partial or not (view.is_whole or place)
    # Weights that differ in their names alone share a graph. Its tensors share no scales.
    config = store.config._replace(name=None, scale_group=None)
    flat = names, (store.format.name, tensor.dtype, partial, matrix, place, config)
    if view.is_whole and not tensor.is_flat:
        if not is_known:
            store.traced = Traced(object(), known, inner)
        tensor._taken_apart = store.traced.key, flat
    return flat


def inner_tensor(tensor, index: int) -> torch.Tensor | None:
    """What INNER[index] names."""
    traced = tensor._view.store.traced
    if traced is not None and traced.key is tensor._taken_apart[0]:
        return traced.inner[index]
    return inner_tensors(tensor)[index]


def inner_tensors(tensor) -> list[torch.Tensor | None]:
    """Those that INNER names. None of a view without bytes, and of a weight whose gathers differ by
    pass, of which the buffers of both passes are there.
    """
    view, store = tensor._view, tensor._store
    if store.present is not None or view.place is not None:
        bytes = store.bytes
        every = bytes.buffers if store.present is None else store.traced_buffers
        return [*every, bytes.amax, bytes.history, store.present]
    return [*buffers.tensors_of(view.operand()), None]


def unflatten(inner: dict[str, torch.Tensor], context, shape) -> tuple[View, torch.dtype]:
    """The view and the logical dtype of what flatten() made, over other tensors."""
    format, dtype, partial, matrix, place, config = context
    *tensors, present = map(inner.get, INNER)
    size = matrix or matrix_shape(shape)
    bytes = _C.Buffers(registry.format(format), *size, tensors[:4], *tensors[4:])
    store = Store(bytes, None, config)
    if present is not None:
        store = GatheredStore(bytes, config, None, present)
    store.partial = partial
    return View(store, place=place and (shape, *place)), dtype


# ---- keys of graphs ----


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
    return isinstance(tensor._store.tensors[0], FakeTensor)


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
