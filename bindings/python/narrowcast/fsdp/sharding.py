"""What the shard of a weight is, and where a weight may be cut: every rank asks that of the whole
weight, so all ranks get the same answer.
"""

import functools
import math

import torch

from narrowcast.fsdp import copy_gather, torch_names, torch_parameters
from narrowcast.master.weight import MasterWeight
from narrowcast.registry import Format
from narrowcast.tensor import QuantizedTensor, buffers, distributed_parts, dtensors, unaligned
from narrowcast.tensor.region import matrix_shape
from narrowcast.tensor.store import Store
from narrowcast.tensor.store_copies import copy_region
from narrowcast.tensor.unaligned import UnalignedShard, UnalignedStore

is_cutting = False  # fully_shard puts a shard in a weight's place now


def cutting_weights(function):
    """The method with which fully_shard cuts a weight. Of one that is its own master torch cuts the
    value, and it learns here which rows this rank has; bytes that a cast need not give, as
    nc.load_published leaves them, go along. Of a frozen one torch cuts the shape, and this rank's
    bytes are copied here. Errors as of check_cuts().
    """

    @functools.wraps(function)
    def init_sharded_param(self, weight, device, shard_placement_fn, *args, **kwargs):
        global is_cutting
        chosen = shard_placement_fn and (lambda _: shard_placement_fn(weight))
        is_cutting = True
        try:
            function(self, _shape_of(weight), device, chosen, *args, **kwargs)
            if isinstance(local := dtensors.local_of(weight), QuantizedTensor):
                torch_parameters.begin_with(self, _frozen_shard(self, local))
            torch_parameters.adapt(self)
            _become_shard(self)
            if isinstance(local, MasterWeight):
                local.cell.is_replaced = True
                if local.cell.has_exact_bytes:
                    store = store_of(self)
                    _copy_rows(self, store, local._store)
                    store.mark_fresh()
        finally:
            is_cutting = False

    return init_sharded_param


def measuring_weights(function):
    """The method that asks how large a part is that stays gathered after the forward."""

    @functools.wraps(function)
    def init_sharded_post_forward_param_metadata(self, weight):
        function(self, _shape_of(weight))

    return init_sharded_post_forward_param_metadata


def _shape_of(weight: torch.Tensor) -> torch.Tensor:
    """A plain tensor on meta like a weight of bytes alone; any other weight itself."""
    local = dtensors.local_of(weight)
    if not isinstance(local, QuantizedTensor):
        return weight
    plain = torch.empty(local.shape, dtype=local.dtype, device="meta")
    return torch.nn.Parameter(dtensors.like(weight, plain), weight.requires_grad)


def _frozen_shard(parameter, weight: QuantizedTensor) -> QuantizedTensor:
    """A copy of this rank's bytes. All shards begin with bytes of one amax."""
    view, format = weight._view, weight.format
    whole = view.store if view.is_whole else view.own_store()
    check_cuts(parameter, whole.config.name or "a weight", format)
    whole.refresh()
    own_shape = torch_names.local_tensor(parameter).shape
    shard = unaligned_shard_of(parameter, format)
    if shard is not None:
        made = unaligned.new_empty(whole, shard, weight.device)
    else:
        usages = buffers.kept_usages(format, whole.bytes.usages)
        made = whole.new_empty(*matrix_shape(own_shape), usages, weight.device)
    _copy_rows(parameter, made, whole)
    made.partial = dtensors.is_cut(torch_names.sharded(parameter))
    return QuantizedTensor(made, own_shape, weight.dtype)


def _copy_rows(parameter, made: Store, whole: Store) -> None:
    """Copies this rank's part of a matrix, bytes and master, into its shard."""
    if isinstance(made, UnalignedStore):
        unaligned.fill(made, whole)
        return
    for here, there in copy_gather.pieces_of(parameter)[torch_names.shard_rank(parameter)]:
        copy_region(made, here, whole, there)


def divides(format: Format, shape, shards: int) -> bool:
    """Whether the cuts of rows between so many shards divide blocks or bytes of a weight."""
    if shards == 1 or 0 in shape[:-1]:
        return False
    return len(shape) < 2 or _shard_rows(shape, shards) % format.shard_row_step != 0


def why_not(format: Format, shape, shards: int) -> str | None:
    """Why the rows of a weight cannot be cut into so many shards, with what would; None if they
    can.
    """
    if not divides(format, shape, shards):
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
    enough = -(-matrix_shape(shape)[0] // multiple) * multiple
    return (
        f"a shard would have {_shard_rows(shape, shards)} rows, and {format.name} can be cut at "
        f"multiples of {step} rows only (its row step). Use {enough} rows (a multiple of "
        f"{multiple}), a number of ranks that leaves multiples of {step}, or a format with a "
        "smaller row step"
    )


def _shard_rows(shape, shards: int) -> int:
    """Of the first shard, as a matrix."""
    return -(-shape[0] // shards) * math.prod(shape[1:-1])


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
    divided = any(divides(format, one, shards) for one in (*parts.shapes, *like))
    if len(shape) != 2 or not divided:
        return None
    rows, each = shape[0], -(-shape[0] // shards)
    # Ranks without rows all have the shard of the first of them.
    rank = min(torch_names.shard_rank(managed), -(-rows // max(each, 1)))
    shard = UnalignedShard(rank, shards, each, rows, format.shard_row_step)
    if len(parts.shapes) == 1:
        return shard
    return shard._replace(part=parts.index, shapes=parts.shapes, first=parts.first)


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
    """A weight that is its own master, and that has been cut or has taken a shard's place, learns
    which rows of the whole it has. Errors as of check_cuts().
    """
    local = torch_names.local_tensor(parameter)
    if not isinstance(local, MasterWeight) or local.cell.is_shard:
        return
    sharded, format, config = torch_names.sharded(parameter), local.format, local.cell.config
    check_cuts(parameter, config.name or "a weight", format)
    like = () if config.scale_group is None else config.scale_group.shapes
    shard = unaligned_shard_of(parameter, format, like)
    local.cell.become_shard(local.value, dtensors.is_cut(sharded), shard)


def check_sharded(managed, name: str, format: Format) -> None:
    """NotImplementedError unless an FSDPParam is sharded by fully_shard alone; errors as of
    check_cuts().
    """
    if managed.is_dtensor:
        raise NotImplementedError(
            f"{name} is sharded by fully_shard and by tensor parallelism. Call nc.convert before "
            "fully_shard, in either order with parallelize_module"
        )
    check_cuts(managed, name, format)


def check_cuts(managed, name: str, format: Format) -> None:
    """Of an FSDPParam, which may be a part of tensor parallelism: NotImplementedError if it is cut
    along another dimension than its first, that of a matrix's columns, or that of the rows of
    experts; ValueError if its shards cannot be in a format.
    """
    shape = tuple(torch_names.full_shape(managed))
    dim, shards = torch_names.cut_dimension(managed), torch_names.world(managed)
    is_last = dim == len(shape) - 1
    if dim == 0:
        rows, columns = matrix_shape(shape)
        if problem := why_not(format, shape, shards):
            raise ValueError(
                f"{name}: {rows}x{columns} matrix in {format.name} cannot be cut into {shards} "
                f"shards: {problem}; or leave the weight out with nc.convert's filter"
            )
    elif is_last or (len(shape) == 3 and dim == 1):
        distributed_parts.check_parts(name, format, shape, shards, -1 if is_last else 1)
    else:
        raise NotImplementedError(
            f"{name}: a weight of shape {shape} can be sharded along its first dimension "
            "(rows), its last (columns), and of three dimensions along the second (rows of each "
            f"expert), not along dimension {dim}. Use Shard(0), or leave the weight out with "
            "nc.convert's filter"
        )
