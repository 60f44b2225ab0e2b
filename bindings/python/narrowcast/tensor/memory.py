"""What the tensors of a checkpoint are in memory: plain, dense, apart from each other."""

import itertools

import torch

_INFINITY = 0x7F800000  # as the bits of a float32


def check_dense(owner, part: str, tensor) -> None:
    """TypeError or ValueError unless it is a plain tensor whose elements lie in memory, each in a
    place of its own.
    """
    if type(tensor) is not torch.Tensor:
        owner.refuse(f"{part} is of type {type(tensor).__name__}, not torch.Tensor", TypeError)
    if tensor.layout != torch.strided or tensor.is_nested:
        owner.refuse(f"{part} is {'nested' if tensor.is_nested else tensor.layout}, not dense")
    if tensor.requires_grad:
        owner.refuse(f"{part} requires a gradient")
    if tensor.is_quantized or tensor.is_conj() or tensor.is_neg() or tensor._is_zerotensor():
        owner.refuse(f"{part} has values that its memory does not hold as they are")
    if _reach(tensor) is None:
        owner.refuse(f"{part} has elements that share memory (strides {tensor.stride()})")
    begin, end = _span(tensor)
    if end > tensor.untyped_storage().nbytes():
        owner.refuse(
            f"{part} takes bytes {begin} to {end} of a storage of "
            f"{tensor.untyped_storage().nbytes()}"
        )


def check_apart(owner, parts: dict) -> None:
    """ValueError if two tensors share memory: a write to one would change the other."""
    spans = []
    for part, tensor in parts.items():
        if tensor is not None and not tensor.is_meta and tensor.numel():
            begin, end = _span(tensor)
            address = tensor.untyped_storage().data_ptr()
            spans.append((address + begin, address + end, part))
    spans.sort()
    for (_, end, part), (begin, _, other) in itertools.pairwise(spans):
        if begin < end:
            owner.refuse(f"{part} and {other} share memory")


def are_magnitudes(tensor: torch.Tensor) -> bool:
    """Whether no float32 is negative, -0 included, or NaN."""
    bits = tensor.contiguous().view(torch.int32)
    return bool(((bits >= 0) & (bits <= _INFINITY)).all())


def _reach(tensor: torch.Tensor) -> int | None:
    """How far the last element lies behind the first. None if two elements may be one."""
    if tensor.numel() == 0:
        return 0
    reach = 0
    steps = zip(tensor.stride(), tensor.shape, strict=True)
    for step, size in sorted((step, size) for step, size in steps if size > 1):
        if step <= reach:
            return None
        reach += step * (size - 1)
    return reach


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """The bytes of its storage that it takes."""
    begin = tensor.storage_offset() * tensor.itemsize
    return begin, begin + (_reach(tensor) + 1) * tensor.itemsize if tensor.numel() else begin
