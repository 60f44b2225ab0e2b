"""A QuantizedTensor as plain tensors and facts, and back: for pickling and torch.compile."""

import hashlib
from typing import NamedTuple

import torch

from narrowcast import registry
from narrowcast._C import Bytes
from narrowcast.tensor.label import Label
from narrowcast.tensor.master import Master
from narrowcast.tensor.region import matrix_shape
from narrowcast.tensor.store import Store

# The tensors, as attributes of a QuantizedTensor.
BUFFERS = ("rowwise_data", "rowwise_scale_inv", "columnwise_data", "columnwise_scale_inv")
SPANNING = ("amax", "history", "master")
# What a graph of torch.compile reads of a weight whose gathers differ by pass: the buffers of all
# passes, and which of them have come.
GATHERED = tuple(f"_gathered_{name}" for name in BUFFERS)
PRESENT = "_present"


def parts_of(tensor) -> tuple:
    """The arguments of narrowcast.tensor.rebuild: format, shape, dtype, the tensors (None where
    absent), name, recompute, partial, the rows and columns that a flat view keeps, requires_grad,
    whether it is a parameter, and products.
    """
    view, label = tensor._view, tensor._view.store.label
    saving = "be saved by itself: a state dict holds its master"
    if view.store.master is None:
        saving = (
            "be saved by itself, and it keeps no master. Leave frozen weights out of a sharded "
            "checkpoint (StateDictOptions(ignore_frozen_params=True)), or save a full one "
            "(full_state_dict=True), or have nc.convert(..., trainable=True) keep masters"
        )
    view.store.check_alone(saving)
    facts = view.store.format.name, tuple(tensor.shape), tensor.dtype
    partial = view.store.partial or not view.is_whole
    options = label.name, label.recompute, partial, flattened(tensor)
    is_parameter = isinstance(tensor, torch.nn.Parameter)
    return *facts, _tensors_of(tensor), *options, tensor.requires_grad, is_parameter, label.products


def flattened(tensor) -> tuple[int, int] | None:
    """The rows and columns that a flat view keeps; None of any other tensor."""
    return tensor._view.region.shape if tensor.is_flat else None


def store_of(format: str, shape, tensors, partial: bool, flattened, label: Label) -> Store:
    """The store of a tensor's parts."""
    *tensors, master = tensors
    rows, columns = flattened or matrix_shape(shape)
    bytes = Bytes(registry.format(format), rows, columns, tensors[:4], *tensors[4:])
    kept = None if master is None else Master(master.reshape(rows, columns).contiguous())
    store = Store(bytes, kept, label)
    store.partial = partial
    return store


def _tensors_of(tensor) -> list[torch.Tensor | None]:
    """Those that are there, in the order of BUFFERS and SPANNING."""
    view = tensor._view
    if view.is_whole:
        view.store.refresh()
        bytes = view.store.bytes
        return [*bytes.buffers, bytes.amax, bytes.history, tensor.master]
    stored = [view.stored(usage, index) for usage in registry.USAGES for index in (0, 1)]
    return stored + [getattr(tensor, name) for name in SPANNING]


class Aside:
    """A label that torch.compile carries along and does not compare: weights that differ in their
    names alone share a graph.
    """

    def __init__(self, label: Label):
        self.label = label

    def __eq__(self, other) -> bool:
        return isinstance(other, Aside)

    def __hash__(self) -> int:
        return hash(Aside)


class Traced(NamedTuple):
    """Of a gathered weight, what torch.compile asks at every call, several times in each pass, and
    what stays until the shard is another one.
    """

    flat: tuple[list[str], tuple]  # as __tensor_flatten__ returns it
    dtype: torch.dtype
    buffers: list[torch.Tensor | None]  # those of all passes


def gathered_buffer(tensor, index: int) -> torch.Tensor | None:
    """What GATHERED[index] names."""
    store = tensor._view.store
    if store.traced is not None:
        return store.traced.buffers[index]
    if store.gather is None:  # in a trace, which has put together what it read here
        return store.bytes.buffer(index)
    return _of_passes(store)[index]


def _of_passes(store) -> list[torch.Tensor | None]:
    passes = [store.gather.whole(backward) for backward in (False, True)]
    found = ((bytes.buffer(index) for bytes in passes) for index in range(len(BUFFERS)))
    return [next((one for one in every if one is not None), None) for every in found]


def flatten(tensor) -> tuple[list[str], tuple]:
    """The names of the tensors that are there, and the rest, as __tensor_flatten__ returns them."""
    view = tensor._view
    store = view.store
    if store.gather is None or not view.is_whole or tensor.is_flat:
        return _flatten(tensor)
    store.check_there()
    if store.traced is None or store.traced.dtype != tensor.dtype:
        store.traced = Traced(_flatten(tensor), tensor.dtype, _of_passes(store))
    return store.traced.flat


def _flatten(tensor) -> tuple[list[str], tuple]:
    store = tensor._view.store
    if store.present is None:
        found = dict(zip(BUFFERS + SPANNING, _tensors_of(tensor), strict=True))
    else:
        found = {name: getattr(tensor, name) for name in (*GATHERED, PRESENT, "amax", "history")}
    there = [name for name, one in found.items() if one is not None]
    partial = store.partial or not tensor._view.is_whole
    facts = store.format.name, tensor.dtype, partial, flattened(tensor), store.label.products
    return there, (*facts, Aside(store.label))


def stable_hash(tensor) -> str:
    """By which torch.compile's caches, of any process, know what a graph of a tensor rests on."""
    there, (*facts, aside) = flatten(tensor)
    inner = [
        (name, one.shape, one.stride(), one.storage_offset(), one.dtype, one.device)
        for name, one in ((name, getattr(tensor, name)) for name in there)
    ]
    known = (*facts, aside.label, tensor.shape, tensor.requires_grad, tensor.is_inference(), inner)
    return hashlib.blake2b(repr(known).encode(), digest_size=16).hexdigest()


def unflatten(inner: dict[str, torch.Tensor], context, shape) -> tuple[Store, torch.dtype]:
    """The store and the logical dtype of what flatten() made, over other tensors."""
    format, dtype, partial, flattened, _, aside = context
    pairs = zip(BUFFERS, GATHERED, strict=True)
    tensors = [inner[one] if one in inner else inner.get(other) for one, other in pairs]
    tensors += [inner.get(name) for name in SPANNING]
    store = store_of(format, shape, tensors, partial, flattened, aside.label)
    store.present = inner.get(PRESENT)
    return store, dtype
