"""Whether what a checkpoint brings as the parts of a QuantizedTensor is what its format keeps for a
matrix of its size. _C.Buffers checks the rest: devices, and, when kernels read them, memory.
"""

import torch

from narrowcast import registry
from narrowcast.registry.partners import partners_of
from narrowcast.tensor import buffers
from narrowcast.tensor.region import matrix_shape
from narrowcast.tensor.serialize import BUFFERS, SPANNING

LOGICAL_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
NAMES = BUFFERS + SPANNING


def checked_tensors(format: str, shape, dtype, tensors, name, flattened, matmul: str) -> list:
    """Checks the arguments of narrowcast.tensor.rebuild: format, dtype, `matmul`, and of each
    tensor whether it is there, its dtype and its shape. ValueError or TypeError for the first that
    is wrong, with the weight's name. Returns the tensors.
    """
    try:
        facts = registry.format(format)
        if dtype not in LOGICAL_DTYPES:
            raise TypeError(f"its dtype is {dtype}, not float32, bfloat16 or float16")
        partners_of(facts, matmul)
        if len(tensors) != len(NAMES):
            raise ValueError(f"it has {len(tensors)} tensors, not {len(NAMES)}: {NAMES}")
        wanted = _wanted(facts, shape, *(flattened or matrix_shape(shape)), tensors)
        return [_checked(facts, *one) for one in zip(NAMES, tensors, wanted, strict=True)]
    except (TypeError, ValueError) as error:
        words = "a saved QuantizedTensor" if name is None else f"saved weight {name!r}"
        raise type(error)(f"{words}: {error}") from None


def _wanted(format: registry.Format, shape, rows: int, columns: int, tensors) -> list:
    """What the format keeps for a matrix in the usages that are there: on meta, or None."""
    there = [tensors[registry.buffers_of(usage)[0]] is not None for usage in registry.USAGES]
    usages = [usage for usage, has in zip(registry.USAGES, there, strict=True) if has]
    if not usages:
        raise ValueError("it has the bytes of neither usage")
    wanted = dict.fromkeys(registry.BUFFERS)
    for usage in usages:
        if rows * columns:
            format.check_holds(usage, rows, columns)
        for index in registry.buffers_of(usage):
            sizes = format.buffer_shape(index, rows, columns)
            wanted[index] = torch.empty(sizes, dtype=format.buffer_dtype(index), device="meta")
    spanning = buffers.allocate(format, 0, 0, usages, torch.device("meta"))
    master = None if tensors[-1] is None else torch.empty(shape, device="meta", dtype=torch.float32)
    return [*wanted.values(), spanning.amax, spanning.history, master]


def _checked(format: registry.Format, part: str, tensor, wanted) -> torch.Tensor | None:
    if (tensor is None) != (wanted is None):
        verbs = ("keeps none", "has one") if wanted is None else ("keeps one", "has none")
        raise ValueError(f"{part}: {format.name} {verbs[0]}, and it {verbs[1]}")
    if tensor is None:
        return None
    if tensor.dtype != wanted.dtype:
        raise TypeError(f"{part} is {tensor.dtype}, not {wanted.dtype}")
    if tensor.numel() == wanted.numel() == 0:  # the buffer of the matrix that it was made as
        return tensor.new_empty(wanted.shape)
    if tensor.shape != wanted.shape:
        raise ValueError(f"{part} has shape {tuple(tensor.shape)}, not {tuple(wanted.shape)}")
    return tensor.detach()
