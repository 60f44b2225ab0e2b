"""Writing in place: copy_ takes the bytes of a tensor of the same format, and the values of others;
a fill does not depend on the old value. Values go to the master, if there is one, and the bytes are
made when they are next read.
"""

import torch

from narrowcast import _C
from narrowcast.operators import arithmetic, averages, table
from narrowcast.operators.common import refuse_flat, value_of
from narrowcast.tensor import LOGICAL_DTYPES, QuantizedTensor, buffers, unaligned
from narrowcast.tensor.dispatch import implements
from narrowcast.tensor.region import Region
from narrowcast.tensor.serialize import flattened
from narrowcast.tensor.store import Store
from narrowcast.tensor.store_copies import copy_region, write
from narrowcast.tensor.unaligned import UnalignedStore
from narrowcast.tensor.view import View


@implements(*table.FILL.operators)
def _fill(func, args, kwargs):
    tensor, *rest = args
    if not isinstance(tensor, QuantizedTensor):
        return arithmetic.run(func, args, kwargs)
    refuse_flat(tensor, func)
    if tensor.master is not None:
        func(tensor.master, *rest, **kwargs)
        tensor._store.mark_stale(tensor._view.region.row_end)
        return tensor
    value = torch.empty(tensor.shape, dtype=torch.float32, device=tensor.device)
    tensor.write(func(value, *rest, **kwargs))
    return tensor


@implements(*table.MERGE.operators)
def _merge(func, args, kwargs):
    """`w += x`. With a factor, as optimizers have it, it is arithmetic."""
    tensor, other = args[:2]
    is_merge = isinstance(tensor, QuantizedTensor) and isinstance(other, torch.Tensor)
    if not is_merge or other.shape != tensor.shape or kwargs.get("alpha", 1) != 1:
        return arithmetic.run(func, args, kwargs)
    refuse_flat(tensor, func)
    tensor._store.keep_master()
    return averages.run(func, args, kwargs)


@implements(*table.LISTS.operators)
def _each(func, args, kwargs):
    """_foreach_name_(tensors, others) is tensor.name_(other) of each pair: torch would run the list
    as one.
    """
    name = func._schema.name.removeprefix("aten::_foreach_")
    for tensor, *others in zip(*(one for one in args if isinstance(one, list)), strict=True):
        getattr(tensor, name)(*others)


# ---- copy_ ----


@implements(*table.COPY.operators)
def _copy(func, args, kwargs):
    target, source = args[:2]
    is_quantized, brings = (isinstance(one, QuantizedTensor) for one in (target, source))
    both = is_quantized and brings
    # As matrices too: flat views forget theirs.
    alike = both and target.shape == source.shape and flattened(target) == flattened(source)
    if alike and target._view.is_same(source._view):
        return target  # set_state_dict, after a load into the weight's own state dict
    if alike and target.format is source.format:
        _copy_bytes(target, source)
        return target
    if brings:
        source = value_of(source, torch.float32, arithmetic.reads_masters(target, source))
    if not is_quantized:
        return target.copy_(source, *args[2:])
    _write(target, source)
    return target


def _copy_bytes(target: QuantizedTensor, source: QuantizedTensor) -> None:
    """Between tensors of one format and shape. ValueError if the source lacks a usage."""
    if _is_shard(source._view, target._view):
        _make_shard(target, source._view)
        return
    store, region = target._store, target._view.region
    origin, taken = source._view.placed(target._view.exchanged)
    is_shared = store.master is not None and store.master.is_shared
    if store.master is None or (is_shared and not origin.needs_others):
        origin.refresh()  # bytes of a stale source could not be made anew here
    missing = set(store.bytes.usages) - set(origin.bytes.usages)
    if _lie_apart(store, origin) or _would_change_others(store, region, origin, taken):
        write(store, region, origin.high_precision(taken))
    elif missing and origin.master is not None:
        write(store, region, taken.slice(origin.master.value))
    elif missing == {"columnwise"} and store.format.columnwise_derived:
        rowwise = buffers.part(origin.bytes, taken, ("rowwise",))
        derived = Store(_C.with_columnwise(rowwise))
        derived.partial, derived.used = origin.partial or taken != origin.region, origin.used
        copy_region(store, region, derived, derived.region)
    elif missing:
        raise ValueError(
            f"{target.describe()}: copy_ from a tensor without {' and '.join(sorted(missing))} "
            "bytes, which do not follow from those it has. Quantize the source with both usages, "
            "or copy a plain tensor"
        )
    else:
        copy_region(store, region, origin, taken)


def _is_shard(source: View, target: View) -> bool:
    """Whether fully_shard fills a blank with a shard that shares blocks with others."""
    return unaligned.is_blank(target.store) and source.store is not target.store


def _make_shard(target: QuantizedTensor, source: View) -> None:
    """Has a part of a blank, and the blank itself, look at a shard with what that shares."""
    if isinstance(source.store, UnalignedStore):
        shard = source.store.map(lambda tensor: tensor.to(target.device, copy=True))
        shard.shard_template = None
    else:
        shard = unaligned.new_shard_at(source.store, source.region.row)
    target.replace_store(shard)


def _lie_apart(store: Store, origin: Store) -> bool:
    """Whether two stores have the bytes of other blocks of their wholes."""
    return unaligned.shard_of(store) != unaligned.shard_of(origin)


def _would_change_others(store: Store, region: Region, origin: Store, taken: Region) -> bool:
    """Whether bytes under another scale of the tensor would change what lies beside them: in the
    same matrix, or in other ranks' shards.
    """
    if _is_used_beside(store, region):
        return store.master is not None or not buffers.have_one_scale(store.bytes, origin.bytes)
    return _brings_own_scale(store, origin, taken)


def _is_used_beside(store: Store, region: Region) -> bool:
    """Whether a scale of the whole tensor belongs to more rows and columns than a region."""
    rest = region.row > 0 or region.row_end < store.used or region.columns < store.columns
    return store.format.tensor_amax and rest and not region.is_empty


def _brings_own_scale(store: Store, origin: Store, taken: Region) -> bool:
    """Whether a shard would get bytes under a scale that other ranks' shards have not: those of
    what is no part of a weight, as a checkpoint's are.
    """
    spans = store.partial and store.format.tensor_amax
    if not spans or origin.partial or taken != origin.region or taken.is_empty:
        return False
    return not buffers.have_one_scale(store.bytes, origin.bytes)


def _write(target: QuantizedTensor, value: torch.Tensor) -> None:
    if value.layout != torch.strided:
        value = value.to_dense()
    if value.is_meta and not target.is_meta:
        raise ValueError(
            f"{target.describe()}: copy_ of a tensor on the meta device, which has no value. Give "
            "it one first (to_empty and an initialisation, or a load)"
        )
    value = value.to(target.device)
    try:
        value = value.expand(target.shape)
    except RuntimeError as error:
        raise ValueError(
            f"{target.describe()}: copy_ of a tensor of shape {tuple(value.shape)} into one of "
            f"shape {tuple(target.shape)}: the shapes must be equal, or broadcast to the target's"
        ) from error
    value = value if value.dtype in LOGICAL_DTYPES else value.to(torch.float32)
    if averages.is_averaging():
        averages.write(target, value)
    else:
        target.write(value)
