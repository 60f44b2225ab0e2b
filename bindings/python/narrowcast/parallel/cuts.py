"""Where tensor parallelism may cut a weight. Every rank asks this of the whole weight, so all ranks
get the same answer.
"""

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from narrowcast.registry import USAGES, Format
from narrowcast.tensor import QuantizedTensor, dtensors
from narrowcast.tensor.region import matrix_shape


def is_part(weight: torch.Tensor) -> bool:
    """Whether a weight is quantized, and cut by tensor parallelism alone."""
    quantized = isinstance(dtensors.local_of(weight), QuantizedTensor)
    return quantized and dtensors.is_cut(weight) and weight.device_mesh.ndim == 1


def check(weight: DTensor, name: str, format: Format, modules: list[nn.Module]) -> None:
    """NotImplementedError unless a DTensor that fully_shard does not manage is the weight of linear
    layers alone, and lies over a mesh of one dimension, whole or cut into rows or columns;
    ValueError if a cut would divide a block.
    """
    for module in modules:
        if not isinstance(module, nn.Linear) or type(module).forward is not nn.Linear.forward:
            raise NotImplementedError(
                f"{name} is a DTensor (tensor parallelism), and the forward of its "
                f"{type(module).__name__} is not that of nn.Linear, whose product alone is known. "
                "Use nn.Linear, or leave it out with nc.convert's filter"
            )
    placement = weight.placements[0]
    known = placement.is_replicate() or placement.is_shard(0) or placement.is_shard(1)
    if weight.device_mesh.ndim != 1 or weight.dim() != 2 or not known:
        raise NotImplementedError(
            f"{name} is a DTensor of {weight.dim()} dimensions with placements "
            f"{weight.placements}: besides fully_shard's own, one Shard(0), Shard(1) or "
            "Replicate() over a mesh of one dimension is supported (parallelize_module with "
            "ColwiseParallel or RowwiseParallel). Leave it out with nc.convert's filter"
        )
    if not placement.is_replicate():
        _check_cut(weight, name, format, placement.dim)


def _check_cut(weight: DTensor, name: str, format: Format, dim: int) -> None:
    ranks, size = weight.device_mesh.size(), weight.shape[dim]
    what, step = ("rows", "columns")[dim], format.step(USAGES)[dim]
    part = part_shape(weight)[dim]
    if part % step == 0 and part * (ranks - 1) < size:
        return
    multiple = step * ranks
    raise ValueError(
        f"{name}: {matrix_shape(weight.shape)[0]}x{weight.shape[1]} matrix in {format.name} cannot "
        f"be cut into {ranks} parts by tensor parallelism: a part would have {part} {what}, and "
        f"each rank needs a multiple of {step}. Use {-(-size // multiple) * multiple} {what}, "
        f"another number of ranks, a format with smaller blocks, or leave the weight out with "
        "nc.convert's filter"
    )


def part_shape(weight: torch.Tensor) -> list[int]:
    """The shape of the first rank's part of a DTensor over a mesh of one dimension; of any other
    weight, its own.
    """
    shape = list(weight.shape)
    if isinstance(weight, DTensor) and weight.device_mesh.ndim == 1:
        for placement in weight.placements:
            if placement.is_shard():
                shape[placement.dim] = -(-shape[placement.dim] // weight.device_mesh.size())
    return shape
