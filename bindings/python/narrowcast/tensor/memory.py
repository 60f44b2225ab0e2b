"""What the tensors of a checkpoint are in memory: plain, dense, apart from each other."""

import itertools

import torch
from torch._subclasses import FakeTensor

_INFINITY = 0x7F800000  # as the bits of a float32


def problem_with(tensor: torch.Tensor) -> str | None:
    """What keeps the elements of a plain tensor from being read, for messages: of a storage that
    was cut short torch would read what lies behind it. None of a subclass, whose storage says less.
    """
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter, FakeTensor):
        return None
    if tensor.layout != torch.strided or tensor.is_nested or tensor.is_quantized:
        kind = "nested" if tensor.is_nested else tensor.layout
        return f"is {'quantized by torch' if tensor.is_quantized else kind}, not dense"
    begin, end = _span(tensor)
    if tensor._is_zerotensor() or end <= tensor.untyped_storage().nbytes():
        return None
    return f"takes bytes {begin} to {end} of a storage of {tensor.untyped_storage().nbytes()}"


def check_dense(owner, part: str, tensor) -> None:
    """TypeError or ValueError unless it is a plain tensor whose elements lie in memory, each in a
    place of its own.
    """
    if type(tensor) not in (torch.Tensor, FakeTensor):  # torch.load makes these in a FakeTensorMode
        owner.refuse(f"{part} is of type {type(tensor).__name__}, not torch.Tensor", TypeError)
    if problem := problem_with(tensor):
        owner.refuse(f"{part} {problem}")
    if tensor.requires_grad:
        owner.refuse(f"{part} requires a gradient")
    if tensor.is_conj() or tensor.is_neg() or tensor._is_zerotensor():
        owner.refuse(f"{part} has values that its memory does not hold as they are")
    if _overlaps(tensor):
        owner.refuse(f"{part} has elements that share memory (strides {tensor.stride()})")


def check_apart(owner, parts: dict) -> None:
    """ValueError if two tensors share memory: a write to one would change the other."""
    spans = []
    for part, tensor in parts.items():
        if tensor is not None and has_values(tensor) and tensor.numel():
            begin, end = _span(tensor)
            address = tensor.untyped_storage().data_ptr()
            spans.append((address + begin, address + end, part))
    spans.sort()
    for (_, end, part), (begin, _, other) in itertools.pairwise(spans):
        if begin < end:
            owner.refuse(f"{part} and {other} share memory")


def has_values(tensor: torch.Tensor) -> bool:
    """Whether it stands for more than a shape."""
    return not tensor.is_meta and type(tensor) is not FakeTensor


def are_magnitudes(tensor: torch.Tensor) -> bool:
    """Whether no float32 is negative, -0 included, or NaN."""
    bits = tensor.resolve_neg().contiguous().view(torch.int32)
    return bool(((bits >= 0) & (bits <= _INFINITY)).all())


def _steps(tensor: torch.Tensor) -> list[tuple[int, int]]:
    """The strides and the sizes of all dimensions that have neighbours."""
    pairs = zip(tensor.stride(), tensor.shape, strict=True)
    return sorted((step, size) for step, size in pairs if size > 1)


def _overlaps(tensor: torch.Tensor) -> bool:
    """Whether two elements may be one."""
    reach = 0
    for step, size in _steps(tensor) if tensor.numel() else ():
        if step <= reach:
            return True
        reach += step * (size - 1)
    return False


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """The bytes of its storage that it takes."""
    if tensor.numel() == 0:
        return 0, 0
    begin = tensor.storage_offset() * tensor.itemsize
    reach = sum(step * (size - 1) for step, size in _steps(tensor))
    return begin, begin + (reach + 1) * tensor.itemsize


def have_same_bits(value: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether float32 values are those of another tensor, signs of zeros and NaNs included."""
    other = other.to(value.device, torch.float32)
    return torch.equal(*(one.contiguous().view(torch.int32) for one in (value, other)))
