"""Where tensor and expert parallelism may cut a weight. Every rank asks this of the whole weight,
so all ranks get the same answer.
"""

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from narrowcast.parallel import experts
from narrowcast.parallel.tensor_parallel import TensorParallel
from narrowcast.registry import USAGES, Format
from narrowcast.tensor.region import matrix_shape


def check(weight: DTensor, name: str, format: Format, modules: list[nn.Module]) -> None:
    """NotImplementedError unless a DTensor that fully_shard does not manage is the weight of linear
    layers alone, and lies over a mesh of one dimension, whole or cut into rows or columns; or is a
    stack of experts, each of whose dimensions one of a mesh cuts at most. ValueError if a cut would
    divide a block.
    """
    is_stack = weight.dim() == 3 and not any(map(experts.is_of_one_matrix, modules))
    if not is_stack:
        _check_linear(weight, name, modules)
    cuts = [one for one in weight.placements if not one.is_replicate()]
    known = all(one.is_shard() for one in cuts) and len({one.dim for one in cuts}) == len(cuts)
    if not known or not (is_stack or (weight.dim() == 2 and weight.device_mesh.ndim == 1)):
        raise NotImplementedError(
            f"{name} is a DTensor of {weight.dim()} dimensions with placements "
            f"{weight.placements}: besides fully_shard's own, one Shard(0), Shard(1) or "
            "Replicate() over a mesh of one dimension is supported (parallelize_module with "
            "ColwiseParallel or RowwiseParallel), and of experts one Shard of each dimension. "
            "Leave it out with nc.convert's filter"
        )
    for index, placement in enumerate(weight.placements):
        if placement.is_shard():
            ranks = weight.device_mesh.size(index)
            check_cut(name, format, tuple(weight.shape), ranks, placement.dim)


def _check_linear(weight: DTensor, name: str, modules: list[nn.Module]) -> None:
    for module in modules:
        is_known = type(module).forward in (nn.Linear.forward, TensorParallel.forward)
        if not (isinstance(module, nn.Linear) and is_known):
            raise NotImplementedError(
                f"{name} is a DTensor (tensor parallelism), and the forward of its "
                f"{type(module).__name__} is not that of nn.Linear, whose product alone is known. "
                "Use nn.Linear, or leave it out with nc.convert's filter"
            )


def check_cut(
    name: str,
    format: Format,
    shape: tuple[int, ...],
    ranks: int,
    dim: int,
    is_made: bool = False,
) -> None:
    """ValueError unless a matrix, or a stack of them, can be cut so that every rank has a part of
    whole blocks. `is_made`: its bytes are there, and what is scattered of them is blocks.
    """
    is_stack = len(shape) == 3
    kinds = ("experts",) * is_stack + ("rows", "columns")
    what, step = kinds[dim], ((1,) * is_stack + format.step(USAGES))[dim]
    part = -(-shape[dim] // ranks)
    rest, multiple = shape[dim] - part * (ranks - 1), step * ranks
    way = f"Use {-(-shape[dim] // multiple) * multiple} {what}"
    if part % step != 0:
        problem = f"a part would have {part} {what}, and each rank needs a multiple of {step}"
    elif rest <= 0:
        problem = f"the first ranks would have {part} {what}, and the last one none"
    elif is_made and rest % step != 0:
        problem = f"the last part would have {rest} {what}, no multiple of {step}"
        way = f"Call parallelize_module before nc.convert, or use{way[3:]}"
    else:
        return
    raise ValueError(
        f"{name}: {matrix_shape(shape)[0]}x{shape[-1]} matrix in {format.name} cannot be cut into "
        f"{ranks} parts: {problem}. {way}, another number of ranks, a format "
        "with smaller blocks, or leave the weight out with nc.convert's filter"
    )


def part_shape(weight: torch.Tensor) -> list[int]:
    """The shape of the first rank's part of a DTensor; of any other weight, its own."""
    shape = list(weight.shape)
    if isinstance(weight, DTensor):
        for index, placement in enumerate(weight.placements):
            if placement.is_shard():
                shape[placement.dim] = -(-shape[placement.dim] // weight.device_mesh.size(index))
    return shape
