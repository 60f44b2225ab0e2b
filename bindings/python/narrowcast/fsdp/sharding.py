"""Where a weight may be cut into shards. Every rank asks this of the whole weight, so all ranks get
the same answer.
"""

import functools

import torch

from narrowcast.fsdp import cutting, torch_names, torch_parameters
from narrowcast.master.weight import MasterWeight
from narrowcast.registry import Format
from narrowcast.tensor import QuantizedTensor, buffers, distributed_parts, dtensors
from narrowcast.tensor.dispatch import as_torch_does
from narrowcast.tensor.region import Region, matrix_shape
from narrowcast.tensor.store import Store
from narrowcast.tensor.unaligned import UnalignedShard
from narrowcast.tensor.view import View


def chunk(tensor, chunks: int, dim: int = 0):
    """torch.chunk of a QuantizedTensor: fully_shard cuts a weight with it, and nowhere else says
    into how many shards; distribute_tensor does, too.

    fully_shard may cut rows anywhere, others between blocks. ValueError, with the ways out, if a
    cut would divide a block, or what ranks cannot share; NotImplementedError if fully_shard cuts
    along a dimension that is neither the first nor the last, nor the second of three.
    """
    cut, store = cutting.now(), tensor._store
    if cut is None:
        return as_torch_does(torch.chunk, (tensor, chunks, dim), {})
    if cut.is_measured:
        return torch.empty(tensor.shape, device="meta").chunk(chunks, dim)
    if cut.parameter is None:
        return distributed_parts.cut(tensor, chunks, dim)
    if dim % tensor.dim() != 0:
        check_inner(store.config.name or "a weight", store.format, tensor.shape, chunks, dim)
        _begin(store, chunks)
        if dim % tensor.dim() < tensor.dim() - 1:
            return distributed_parts.rows_of_each(tensor, chunks)
    else:
        check_shards(store.describe(), store.format, store.rows, tensor.shape, chunks)
        _begin(store, chunks)
        # Parts of tensor parallelism may be of different sizes: what one of them shares is reduced
        # by the ranks of all.
        parts = dtensors.parts_of(cut.weight)
        if tensor.dim() == 2 and _any_divides(store.format, parts.shapes, chunks):
            return _unaligned(tensor, chunks, parts, cut.own_rank)
        tensor = _without_derived(tensor)
    return as_torch_does(torch.chunk, (tensor, chunks, dim), {})


def noting_cuts(function):
    """The method with which fully_shard cuts a weight: one that is its own master learns which rows
    of it this rank has. Errors as of check_cuts().
    """
    cut = cutting.by_fully_shard(function)

    @functools.wraps(function)
    def init_sharded_param(self, *args, **kwargs):
        cut(self, *args, **kwargs)
        _become_shard(self)

    return init_sharded_param


def _begin(store: Store, shards: int) -> None:
    """fully_shard begins to cut a store. Shards are copied from it, and learn from it that they are
    parts: one may have all of its rows, and others none.
    """
    store.refresh()  # all shards begin with bytes of one amax
    store.partial = store.partial or shards > 1


def _without_derived(tensor: QuantizedTensor) -> QuantizedTensor:
    """The same value in the usages that its shards keep, over the same memory: bytes that no shard
    has limit no cut.
    """
    store, view = tensor._store, tensor._view
    usages = buffers.kept_usages(store.format, store.bytes.usages)
    if view.exchanged or usages == store.bytes.usages:
        return tensor
    kept = Store(buffers.part(store.bytes, store.region, usages), None, store.config)
    kept.partial, kept.used = store.partial, store.used
    return QuantizedTensor(View(kept, view.region), tensor.shape, tensor.dtype)


def _unaligned(
    tensor: QuantizedTensor, shards: int, parts: dtensors.Parts, rank: int
) -> list[QuantizedTensor]:
    """The rows of each shard, where cuts divide blocks: views that only fully_shard reads."""
    store = tensor._store
    own = _unaligned_shard(store.format, store.rows, shards, rank)
    store.own_shard = own = _as_part(own, parts)
    every = (own._replace(rank=rank) for rank in range(shards))
    regions = [Region(one.row_begin, one.own_rows, 0, store.columns) for one in every]
    return [
        QuantizedTensor(View(store, region), region.shape, tensor.dtype)
        for region in regions
        if region.rows
    ]


def check_shards(description: str, format: Format, rows: int, shape, shards: int) -> None:
    """ValueError unless a weight of so many rows as a matrix can be cut into so many shards of
    ceil(shape[0] / shards).
    """
    if problem := why_not(format, rows, shape, shards):
        raise ValueError(
            f"{description} cannot be cut into {shards} shards: {problem}; or leave the weight out "
            "with nc.convert's filter"
        )


def divides(format: Format, rows: int, shape, shards: int) -> bool:
    """Whether the cuts between so many shards divide blocks or bytes."""
    if shards == 1 or rows == 0:
        return False
    return len(shape) < 2 or _shard_rows(rows, shape, shards) % format.shard_row_step != 0


def _any_divides(format: Format, shapes, shards: int) -> bool:
    return any(divides(format, matrix_shape(shape)[0], shape, shards) for shape in shapes)


def why_not(format: Format, rows: int, shape, shards: int) -> str | None:
    """Why check_shards() does not let it pass, with what would; None if it does."""
    if not divides(format, rows, shape, shards):
        return None
    # What cuts divide is reduced with the amaxes of a cast, and a delayed scale waits for none.
    if len(shape) == 2 and not format.is_delayed:
        return None
    if len(shape) < 2:
        return (
            "a vector is one row of a matrix, and shards are whole rows. Use one rank, or a "
            "parameter of two dimensions"
        )
    step = format.shard_row_step
    multiple = step * shards
    enough = -(-rows // multiple) * multiple
    return (
        f"a shard would have {_shard_rows(rows, shape, shards)} rows, and {format.name} can be cut "
        f"at multiples of {step} rows only (its row step). Use {enough} rows (a multiple of "
        f"{multiple}), a number of ranks that leaves multiples of {step}, or a format with a "
        "smaller row step"
    )


def _shard_rows(rows: int, shape, shards: int) -> int:
    """Of the first shard, as a matrix."""
    return -(-shape[0] // shards) * (rows // shape[0])


def unaligned_shard_of(managed, format: Format, like=()) -> UnalignedShard | None:
    """Where the rows of an FSDPParam's shard lie, if cuts of rows divide blocks of a format, of
    it or of whole weights of the shapes `like`; else None.
    """
    if torch_names.cut_dimension(managed) != 0:
        return None
    shape, shards = torch_names.full_shape(managed), torch_names.world(managed)
    cut = torch_names.parallel_spec(managed)
    parts = dtensors.Parts(0, (shape,), 0) if cut is None else dtensors.parts_of(cut)
    if cut is not None:
        like = [one for whole in like for one in dtensors.parts_of(cut, whole).shapes]
    if len(shape) != 2 or not _any_divides(format, [*parts.shapes, *like], shards):
        return None
    shard = _unaligned_shard(format, shape[0], shards, torch_names.shard_rank(managed))
    return _as_part(shard, parts)


def _unaligned_shard(format: Format, rows: int, shards: int, rank: int) -> UnalignedShard:
    """Ranks without rows all have the shard of the first of them."""
    each = -(-rows // shards)
    first_empty = -(-rows // max(each, 1))
    return UnalignedShard(min(rank, first_empty), shards, each, rows, format.shard_row_step)


def _as_part(shard: UnalignedShard, parts: dtensors.Parts) -> UnalignedShard:
    """A shard of the part that tensor parallelism has cut."""
    if len(parts.shapes) == 1:
        return shard
    return shard._replace(part=parts.index, shapes=parts.shapes, first=parts.first)


def own_store(parameter) -> Store:
    """The shard of a quantized FSDPParam as a matrix of its own. FSDP2 gives a short rank a view of
    a padded one.
    """
    local = torch_names.local_tensor(parameter)
    if isinstance(local, MasterWeight):
        return store_of(parameter)
    if not local._view.is_whole:
        local.detach_from_base()
    torch_parameters.drop_padding(parameter)
    store = local._view.store
    store.partial = dtensors.is_cut(torch_names.sharded(parameter))
    return store


def quantized(group) -> list[tuple]:
    """The quantized parameters of a group, each with the store of its shard."""
    every = ((parameter, store_of(parameter)) for parameter in group.fsdp_params)
    return [(parameter, store) for parameter, store in every if store is not None]


def store_of(parameter) -> Store | None:
    """The store of an FSDPParam's shard; None if that is not quantized."""
    _become_shard(parameter)
    view = getattr(torch_names.local_tensor(parameter), "_view", None)
    return None if view is None else view.store


def store_of_weight(weight: torch.Tensor) -> Store:
    """The store of a quantized weight, or of its shard."""
    _, managed = torch_names.managed(weight)
    return dtensors.local_of(weight)._store if managed is None else store_of(managed)


def _become_shard(parameter) -> None:
    """A weight that is its own master, and that FSDP2 has cut or padded anew, learns which rows of
    the whole it has. Errors as of check_cuts().
    """
    local = torch_names.local_tensor(parameter)
    if not isinstance(local, MasterWeight) or local.cell.is_shard:
        return
    sharded, format, config = torch_names.sharded(parameter), local.format, local.cell.config
    check_cuts(parameter, config.name or "a weight", format)
    like = () if config.scale_group is None else config.scale_group.shapes
    shard = unaligned_shard_of(parameter, format, like)
    local.cell.become_shard(local.value, dtensors.is_cut(sharded), shard)
    torch_parameters.know_padding(parameter)


def check_sharded(managed, name: str, format: Format) -> None:
    """NotImplementedError unless an FSDPParam is sharded along rows or columns, and by fully_shard
    alone; ValueError unless its shards can be in a format.
    """
    if managed.is_dtensor:
        raise NotImplementedError(
            f"{name} is sharded by fully_shard and by tensor parallelism. Call nc.convert before "
            "fully_shard, in either order with parallelize_module"
        )
    check_cuts(managed, name, format)


def check_cuts(managed, name: str, format: Format) -> None:
    """The same of an FSDPParam that may be a part of tensor parallelism."""
    shape = torch_names.full_shape(managed)
    rows, columns = matrix_shape(shape)
    dim, world = torch_names.cut_dimension(managed), torch_names.world(managed)
    if dim != 0:
        check_inner(name, format, shape, world, dim)
    else:
        description = f"{name}: {rows}x{columns} matrix in {format.name}"
        check_shards(description, format, rows, shape, world)


def check_inner(name: str, format: Format, shape, shards: int, dim: int) -> None:
    """NotImplementedError unless a dimension of a weight, which is not its first, is that of a
    matrix's columns or of the rows of experts; ValueError if a cut would divide a block.
    """
    dim %= len(shape)
    is_last = dim == len(shape) - 1
    if not is_last and (len(shape) != 3 or dim != 1):
        raise NotImplementedError(
            f"{name}: a weight of shape {tuple(shape)} can be sharded along its first dimension "
            "(rows), its last (columns), and of three dimensions along the second (rows of each "
            f"expert), not along dimension {dim}. Use Shard(0), or leave the weight out with "
            "nc.convert's filter"
        )
    distributed_parts.check_parts(name, format, tuple(shape), shards, -1 if is_last else 1)
