"""Private state of narrowcast, which some tests look into: all of it is reached from here. Each
function takes a QuantizedTensor, or a DTensor whose local part is one.
"""

import torch
from torch.distributed.tensor import DTensor

from narrowcast import _C
from narrowcast.fsdp import sharding
from narrowcast.tensor.dtensors import local_of
from narrowcast.tensor.unaligned import UnalignedStore


def store_of(weight):
    """The store of its matrix."""
    if isinstance(weight, DTensor):
        return sharding.store_of_weight(weight)
    return local_of(weight)._store


def view_of(weight):
    """Which part of the matrix it is."""
    return local_of(weight)._view


def bytes_of(weight):
    """The _C.Buffers of its matrix."""
    return store_of(weight).bytes


def buffers_of(weight):
    """The buffers that are there."""
    return [one for one in bytes_of(weight).buffers if one is not None]


def tensors_of(weight):
    """All tensors that it consists of: buffers, what spans the tensor, the master."""
    return store_of(weight).tensors


def config_of(weight):
    """Its name and options."""
    return store_of(weight).config


def payloads_of_group(weight):
    """What its FSDP2 group sends in a forward's gather and in a backward's: of each weight."""
    return store_of(weight).sender[0]()._send_buffer.payloads


def is_stale(weight):
    """Whether its master has changed since its bytes were made."""
    return store_of(weight).is_stale


def is_unaligned(weight):
    """Whether it is a shard that shares blocks with other ranks."""
    return isinstance(sharding.store_of_weight(weight), UnalignedStore)


def kept_input_bytes():
    """The bytes of the casts of inputs that are kept for other layers."""
    return _C.kept_input_bytes()


def put(to, source):
    """Writes as kernels do, which no version counter of autograd sees."""
    to.data.copy_(source)


def exchange(layer, other, usages):
    """Puts the bytes of another layer's shard into a shard, in its own memory."""
    mine, theirs = bytes_of(layer.weight), bytes_of(other.weight)
    with torch.no_grad():
        for index, (to, source) in enumerate(zip(mine.buffers, theirs.buffers, strict=True)):
            if to is not None and ("rowwise", "columnwise")[index // 2] in usages:
                put(to, source)
        if mine.amax is not None:
            put(mine.amax, theirs.amax)
    _C.note_write()  # as they do, too
    if torch.cuda.is_available():
        torch.cuda.synchronize()  # FSDP2's gathers wait for nothing between forward and backward
