"""DTensors: the local part, its process group, and new ones like a parameter."""

import functools
import math
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset as box_over

from narrowcast import _C


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """The local tensor of a DTensor; any other tensor itself."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def device_of(parameter: torch.Tensor) -> torch.device:
    """The device of the local part; where that is on meta, of the mesh, where ranks can reduce."""
    device = local_of(parameter).device
    if device.type == "meta" and isinstance(parameter, DTensor):
        return torch.device(parameter.device_mesh.device_type)
    return device


def like(
    parameter: torch.Tensor, local: torch.Tensor, shape: tuple[int, ...] | None = None
) -> torch.Tensor:
    """A tensor distributed as a parameter is, over this local part, whose writes it counts.
    `shape`: of the whole, if it is contiguous and has another one.
    """
    if not isinstance(parameter, DTensor):
        return local
    whole = parameter if shape is None else torch.empty(shape, device="meta")
    meta = TensorMeta(whole.shape, whole.stride(), local.dtype)
    spec = DTensorSpec(parameter.device_mesh, parameter.placements, tensor_meta=meta)
    with torch.inference_mode(False):
        # from_local would move what CPUOffloadPolicy has elsewhere than the mesh.
        made = DTensor(local, spec, requires_grad=local.requires_grad)
    _C.share_count(made, local)
    return made


def first_element(parameter: torch.Tensor) -> int:
    """The row-major index of the local part's first element in the whole tensor, which is cut into
    runs of its first dimension. NotImplementedError if it is cut along another.
    """
    shape, offset = box(parameter)
    if tuple(shape[1:]) != tuple(parameter.shape[1:]):
        raise NotImplementedError(
            f"a weight of shape {tuple(parameter.shape)} is cut over ranks into parts of shape "
            f"{tuple(shape)}, which are no runs of its elements, and the random words of "
            'stochastic rounding are known for runs only. Use rounding="nearest" and, of bfloat16 '
            "values, residual_bits=8 for such weights (those of row-parallel layers, and experts "
            "that are cut within), in a group of their own"
        )
    return offset[0] * parameter.shape[1:].numel() if parameter.dim() else 0


def box(parameter: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shape of the local part, and where it begins in the whole."""
    if not isinstance(parameter, DTensor):
        return tuple(parameter.shape), (0,) * parameter.dim()
    return box_over(parameter.shape, parameter.device_mesh, parameter.placements)


def leaves_any_empty(parameter: torch.Tensor) -> bool:
    """Whether any rank has no elements of a parameter's whole."""
    return any(0 in shape for shape in parts_of(parameter).shapes)


def cuts(parameter: torch.Tensor | DTensorSpec) -> list[int]:
    """The dimensions of its mesh over which a parameter is cut."""
    if not isinstance(parameter, (DTensor, DTensorSpec)):
        return []
    mesh = parameter.device_mesh
    return [
        index
        for index, placement in enumerate(parameter.placements)
        if not (placement.is_replicate() or placement.is_partial()) and mesh.size(index) > 1
    ]


class Parts(NamedTuple):
    """What tensor parallelism has cut a weight into: the shape of each part, and which one is this
    rank's. `first`: the index of its first element in the weight, where parts are runs of
    elements; else 0.
    """

    index: int
    shapes: tuple[tuple[int, ...], ...]
    first: int


def parts_of(parameter: torch.Tensor | DTensorSpec, shape: tuple[int, ...] | None = None) -> Parts:
    """The parts of a parameter, or of a shape that is cut as it is; one where nothing is cut."""
    index, shapes = 0, [shape or tuple(parameter.shape)]
    for cut in cuts(parameter):
        dim, count = parameter.placements[cut].dim, parameter.device_mesh.size(cut)
        shapes = [part for shape in shapes for part in _cut(shape, dim, count)]
        index = index * count + parameter.device_mesh.get_coordinate()[cut]
    are_runs = all(shape[1:] == tuple(parameter.shape[1:]) for shape in shapes)
    first = sum(map(math.prod, shapes[:index])) if are_runs else 0
    return Parts(index, tuple(shapes), first)


def _cut(shape: tuple[int, ...], dim: int, count: int) -> list[tuple[int, ...]]:
    """The shapes that torch.chunk cuts a shape into, with empty parts where it makes none."""
    size = -(-shape[dim] // count)
    sizes = (min(size, max(0, shape[dim] - part * size)) for part in range(count))
    return [(*shape[:dim], one, *shape[dim + 1 :]) for one in sizes]


def is_cut(parameter: torch.Tensor) -> bool:
    """Whether this rank has a part of a parameter, not all of it."""
    return bool(cuts(parameter))


def shard_group(parameter: torch.Tensor):
    """The process group of all ranks that have parts of the same whole; None if each rank has the
    whole. Collective among them where several dimensions of the mesh cut the parameter: then the
    group may have to be made.
    """
    cut = cuts(parameter)
    if len(cut) < 2:
        return parameter.device_mesh.get_group(cut[0]) if cut else None
    mesh = parameter.device_mesh
    here = mesh.get_coordinate()
    ranks = mesh.mesh[tuple(slice(None) if index in cut else at for index, at in enumerate(here))]
    return _joint_group(tuple(sorted(ranks.flatten().tolist())), dist.group.WORLD)


def fact(parameter: torch.Tensor, line: str) -> tuple:
    """A line of a parameter for narrowcast.ranks.same: alike over the ranks of its shards."""
    return shard_group(parameter), device_of(parameter), line


@functools.cache
def _joint_group(ranks: tuple[int, ...], world: dist.ProcessGroup) -> dist.ProcessGroup:
    """The process group of some ranks of all; destroy_process_group() ends it with the world."""
    if len(ranks) == world.size():
        return world
    return dist.new_group(list(ranks), use_local_synchronization=True)
