"""Writing in place, as loads and merges do: copy_ takes the bytes of a tensor of the same format,
and the values of others. What a merge leaves is kept in float32 beside the bytes from then on.
"""

from itertools import compress

import torch

from narrowcast import _C
from narrowcast.operators import arithmetic
from narrowcast.tensor import LOGICAL_DTYPES, QuantizedTensor, buffers, unaligned
from narrowcast.tensor.dispatch import implements
from narrowcast.tensor.region import Region
from narrowcast.tensor.serialize import flattened
from narrowcast.tensor.store import Store
from narrowcast.tensor.store_copies import copy_region, write

aten = torch.ops.aten


@implements(aten.add_.Tensor, aten.sub_.Tensor)
def _merge(func, args, kwargs):
    """`w += x`, x rounded to the weight's dtype: peft rounds what it takes away, and not what it
    adds. With a factor, as optimizers have it, it is arithmetic.
    """
    tensor, other = args[:2]
    is_merge = isinstance(tensor, QuantizedTensor) and isinstance(other, torch.Tensor)
    if not is_merge or other.shape != tensor.shape or kwargs.get("alpha", 1) != 1:
        return arithmetic.run(func, args, kwargs)
    store = tensor._store
    store.check_written()
    if store.master is None:
        store.master = store.high_precision(store.region)
    func(tensor.kept_value, other.to(tensor.dtype))
    store.mark_stale()
    return tensor


@implements(aten._foreach_copy_.default)
def _each(func, args, kwargs):
    """Of each pair: torch would run the list as one."""
    for tensor, other in zip(*args[:2], strict=True):
        tensor.copy_(other)


@implements(
    *(aten.lerp_.Scalar, aten.lerp_.Tensor, aten._foreach_lerp_.List),
    *(aten._foreach_lerp_.Scalar, aten._foreach_lerp_.ScalarList),
)
def _average(func, args, kwargs):
    """A step of AveragedModel: an average of weights that are frozen stays as it is."""
    is_list = isinstance(args[0], list)
    pairs = [*zip(*args[:2], strict=True)] if is_list else [args[:2]]
    frozen = [isinstance(average, QuantizedTensor) for average, _ in pairs]
    if not all(torch.equal(*pair) for pair in compress(pairs, frozen)):
        return arithmetic.run(func, args, kwargs)
    if not all(frozen):
        moves = [not one for one in frozen]
        moved = [[*compress(one, moves)] if isinstance(one, list) else one for one in args]
        func(*moved, **kwargs)
    return None if is_list else args[0]


# ---- copy_ ----


@implements(aten.copy_.default)
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
        source = source.decode(torch.float32)
    if not is_quantized:
        return target.copy_(source, *args[2:])
    _write(target, source)
    return target


def _copy_bytes(target: QuantizedTensor, source: QuantizedTensor) -> None:
    """Between tensors of one format and shape. ValueError if the source lacks a usage."""
    store, region = target._store, target._view.region
    given, taken = source._view.placed(target._view.exchanged)
    given.refresh()
    missing = set(store.bytes.usages) - set(given.bytes.usages)
    apart = unaligned.shard_of(store) != unaligned.shard_of(given)  # with bytes of other blocks
    is_kept = store.master is not None and region != store.region  # what a merge has left
    if apart or is_kept or _would_change_others(store, region, given, taken):
        write(store, region, given.high_precision(taken))
    elif missing == {"columnwise"} and store.format.columnwise_derived:
        rowwise = given.bytes.part(*taken, ("rowwise",))
        derived = Store(_C.with_columnwise(rowwise))
        derived.partial = given.partial or taken != given.region
        copy_region(store, region, derived, derived.region)
    elif missing:
        raise ValueError(
            f"{target.describe()}: copy_ from a tensor without {' and '.join(sorted(missing))} "
            "bytes, which do not follow from those it has. Quantize the source with both usages, "
            "or copy a plain tensor"
        )
    else:
        copy_region(store, region, given, taken)


def _would_change_others(store: Store, region: Region, given: Store, taken: Region) -> bool:
    """Whether bytes under another scale of the tensor would change what lies beside them: in the
    same matrix, or in other ranks' shards, if they are of what is no part of a weight, as a
    checkpoint's are.
    """
    if not store.format.tensor_amax or region.is_empty:
        return False
    is_inside = region.row > 0 or region.row_end < store.rows or region.columns < store.columns
    is_whole = store.partial and not given.partial and taken == given.region
    return (is_inside or is_whole) and not buffers.have_one_scale(store.bytes, given.bytes)


def _write(target: QuantizedTensor, value: torch.Tensor) -> None:
    if value.layout != torch.strided:
        value = value.to_dense()
    value = value.to(target.device).expand(target.shape)
    value = value if value.dtype in LOGICAL_DTYPES else value.to(torch.float32)
    view = target._view
    shape = view.region.shape[::-1] if view.exchanged else view.region.shape
    write(view.store, view.region, view.oriented(value.reshape(shape)))
