"""DTensors: the local part, its process group, and new ones like a parameter."""

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """The local tensor of a DTensor; any other tensor itself."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def like(parameter: torch.Tensor, local: torch.Tensor) -> torch.Tensor:
    """A tensor distributed as a parameter is, with this local part."""
    if not isinstance(parameter, DTensor):
        return local
    return DTensor.from_local(
        local,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


def first_element(parameter: torch.Tensor) -> int:
    """The row-major index of the local part's first element in the whole tensor, which is cut into
    rows.
    """
    if not isinstance(parameter, DTensor):
        return 0
    where = parameter.device_mesh, parameter.placements
    _, offset = compute_local_shape_and_global_offset(parameter.shape, *where)
    return offset[0] * parameter.shape[1:].numel()


def shard_groups(parameter: torch.Tensor) -> list:
    """The process groups over which a parameter is cut."""
    if not isinstance(parameter, DTensor):
        return []
    return [
        parameter.device_mesh.get_group(index)
        for index, placement in enumerate(parameter.placements)
        if placement.is_shard() and parameter.device_mesh.size(index) > 1
    ]


def shard_group(parameter: torch.Tensor):
    """The process group over which a parameter's rows are cut; None if they are not."""
    groups = shard_groups(parameter)
    if len(groups) > 1:
        raise NotImplementedError(
            f"a parameter cut along several dimensions of its mesh ({parameter.placements}) is "
            "not supported"
        )
    return groups[0] if groups else None
