"""The operators narrowcast::part and narrowcast::copy, which graphs of torch.compile hold: of the
key of a weight (bindings/core/graph_key.hpp) they make those of a region of it, and of a copy.
"""

import functools

import torch

from narrowcast import _C
from narrowcast.tensor import buffers, compiling
from narrowcast.tensor.region import Region
from narrowcast.tensor.store import Store


def traced_copy(store: Store, region: Region, device: torch.device) -> Store:
    """In a trace a region of a store as a matrix of its own, in other memory."""
    key = store.graph_key
    if region != store.region:
        key = torch.ops.narrowcast.part(key, [*region], False)
    _register_copy()
    key = torch.ops.narrowcast.copy(key, device)
    with compiling.without_modes():
        copy = Store(store.bytes.part(*region, store.bytes.usages), None, store.config)
    copy.partial, copy.graph_key = store.partial or region != store.region, key
    return copy


def _part(key, region, is_exchanged):
    return _C.key_of_part(key, *region, is_exchanged)


def _copy(key, device):
    bytes = _C.checked_bytes_of_key(key)
    if bytes.is_freed:
        raise ValueError(
            f"a compiled function copies a {bytes.rows}x{bytes.columns} weight in "
            f"{bytes.format.name}, whose bytes have been freed, because FSDP2 has resharded its "
            "module. Use it within the module's forward or backward"
        )
    copy = buffers.mapped(bytes, lambda tensor: tensor.to(device, copy=True))
    return _C.graph_key(_C.Store(copy, None))


# CUDA graphs make other tensors of their results, which are no keys.
_TAGS = (torch.Tag.cudagraph_unsafe,)
_LIBRARY = torch.library.Library("narrowcast", "FRAGMENT")
_LIBRARY.define("part(Tensor key, int[] region, bool is_exchanged) -> Tensor", tags=_TAGS)
_LIBRARY.define("copy(Tensor key, Device device) -> Tensor", tags=_TAGS)
for _device in ("CPU", "CUDA"):
    _LIBRARY.impl("part", _part, _device)
    _LIBRARY.impl("copy", _copy, _device)
_LIBRARY.impl("part", lambda key, region, is_exchanged: key.new_empty(1), "Meta")


@functools.cache
def _register_copy() -> None:
    """Says what copy returns, of which a kernel for meta tensors knows no device. Not at the
    import, because it looks through the files of all loaded modules: a tenth of a second.
    """
    fake = torch.library.register_fake("narrowcast::copy", lib=_LIBRARY)
    fake(lambda key, device: key.new_empty(1, device=device))
