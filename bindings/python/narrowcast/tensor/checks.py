"""What a checkpoint may bring as the parts of a QuantizedTensor. torch.load calls rebuild with
whatever the file says, so everything is checked there: what passes can be used in every way.
"""

import math

import torch

from narrowcast import registry
from narrowcast.registry.partners import partners_of
from narrowcast.tensor import buffers, memory
from narrowcast.tensor.region import matrix_shape
from narrowcast.tensor.serialize import BUFFERS, SPANNING

LOGICAL_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
NAMES = BUFFERS + SPANNING
# Far more than any memory holds, and few enough that no size in bytes leaves 64 bits.
_MOST_ELEMENTS = 2**48


class Owner:
    """Whose parts they are, for messages."""

    def __init__(self, name):
        self.words = f"saved weight {name!r}" if type(name) is str else "saved QuantizedTensor"

    def refuse(self, problem: str, error: type[Exception] = ValueError):
        raise error(
            f"{self.words}: {problem}. No QuantizedTensor is saved like this, so the checkpoint is "
            "damaged or has been changed: load another copy of it"
        )

    def check_type(self, what: str, value, *types: type) -> None:
        """TypeError unless a value is of one of some types; a bool is no int."""
        if type(value) not in types:
            wanted = " or ".join("None" if one is type(None) else one.__name__ for one in types)
            self.refuse(f"its {what} is of type {type(value).__name__}, not {wanted}", TypeError)


def check_parts(
    format,
    shape,
    dtype,
    tensors,
    name,
    recompute,
    partial,
    flattened,
    requires_grad,
    is_parameter,
    matmul,
) -> list[torch.Tensor | None]:
    """Checks the arguments of narrowcast.tensor.rebuild. ValueError or TypeError for the first that
    is wrong. Returns the tensors, as aliases: a file may give those that it has named other memory
    later.
    """
    owner = Owner(name)
    owner.check_type("name", name, str, type(None))
    owner.check_type("format", format, str)
    facts = registry.format(format)
    owner.check_type("recompute", recompute, bool, type(None))
    flags = {"partial": partial, "requires_grad": requires_grad, "is_parameter": is_parameter}
    for what, flag in flags.items():
        owner.check_type(what, flag, bool)
    owner.check_type("dtype", dtype, torch.dtype)
    if dtype not in LOGICAL_DTYPES:
        owner.refuse(f"its dtype is {dtype}, not float32, bfloat16 or float16", TypeError)
    _check_products(owner, facts, matmul)
    _check_sizes(owner, "shape", shape)
    if flattened is not None:
        _check_flattened(owner, flattened, shape)
    return _checked_tensors(owner, facts, shape, flattened, tensors)


def _check_products(owner: Owner, format: registry.Format, matmul) -> None:
    """The same that nc.convert checks: their formats may be others where a weight is loaded."""
    owner.check_type("matmul", matmul, str)
    try:
        partners_of(format, matmul)
    except ValueError as error:
        raise ValueError(f"{owner.words}: {error}") from None


def _check_sizes(owner: Owner, what: str, sizes) -> None:
    owner.check_type(what, sizes, tuple, torch.Size)
    for dimension, size in enumerate(sizes):
        owner.check_type(f"size {dimension} of {what}", size, int)
        if not 0 <= size <= _MOST_ELEMENTS:
            shown = size if abs(size) < 2**64 else f"a number of {size.bit_length()} bits"
            owner.refuse(f"size {dimension} of its {what} is {shown}, not 0 to 2^48")
    if math.prod(max(size, 1) for size in sizes) > _MOST_ELEMENTS:
        owner.refuse(f"its {what} {tuple(sizes)} has more than 2^48 elements")


def _check_flattened(owner: Owner, flattened, shape) -> None:
    """Of a flat view: the matrix that it keeps, of other than one row."""
    _check_sizes(owner, "flattened matrix", flattened)
    sizes = tuple(flattened)
    if len(sizes) != 2 or sizes[0] == 1 or tuple(shape) != (math.prod(sizes),):
        owner.refuse(f"its shape {tuple(shape)} is no flat view of a matrix {sizes}")


def _checked_tensors(owner: Owner, format: registry.Format, shape, flattened, tensors):
    owner.check_type("list of tensors", tensors, list, tuple)
    if len(tensors) != len(NAMES):
        owner.refuse(f"it has {len(tensors)} tensors, not {len(NAMES)} ({', '.join(NAMES)})")
    parts = dict(zip(NAMES, tensors, strict=True))
    for part, tensor in parts.items():
        if tensor is not None:
            memory.check_dense(owner, part, tensor)
    model = _model(owner, format, parts, *(flattened or matrix_shape(shape)))
    if parts["master"] is not None:
        model["master"] = torch.empty(shape, dtype=torch.float32, device="meta")
    for part, wanted in model.items():
        if (parts[part] is None) != (wanted is None):
            verbs = ("keeps none", "has one") if wanted is None else ("keeps one", "has none")
            owner.refuse(f"{part}: {format.name} {verbs[0]}, and it {verbs[1]}")
    there = [part for part in NAMES if parts[part] is not None]
    for part in there:
        _check_like(owner, part, parts[part], model[part])
        if parts[part].device != parts[there[0]].device:
            devices = f"{parts[part].device}, and {there[0]} on {parts[there[0]].device}"
            owner.refuse(f"{part} is on {devices}")
    for part in ("amax", "history"):
        _check_magnitudes(owner, part, parts[part])
    memory.check_apart(owner, parts)
    return [None if one is None else _alias(one, model[part]) for part, one in parts.items()]


def _alias(tensor: torch.Tensor, model: torch.Tensor) -> torch.Tensor:
    """The same memory; the dimensions of one element or none, whose strides may be any, as those of
    a new tensor.
    """
    is_new = tensor.is_contiguous()
    return tensor.detach().as_strided(model.shape, model.stride()) if is_new else tensor.detach()


def _model(owner: Owner, format: registry.Format, parts: dict, rows: int, columns: int) -> dict:
    """What the format keeps for a matrix of this size, in the usages that are there: on meta."""
    usages = []
    for usage in registry.USAGES:
        data, scale = (NAMES[index] for index in registry.buffers_of(usage))
        if (parts[data] is None) != (parts[scale] is None):
            there, missing = (scale, data) if parts[data] is None else (data, scale)
            owner.refuse(f"it has {there} and no {missing}")
        usages += [usage] * (parts[data] is not None)
    if not usages:
        owner.refuse("it has the bytes of neither usage")
    try:
        for usage in usages if rows * columns else ():
            format.check_holds(usage, rows, columns)
    except ValueError as error:
        owner.refuse(str(error))
    model = dict.fromkeys(NAMES)
    for index in (buffer for usage in usages for buffer in registry.buffers_of(usage)):
        sizes = format.buffer_shape(index, rows, columns)
        model[NAMES[index]] = torch.empty(sizes, dtype=format.buffer_dtype(index), device="meta")
    spanning = buffers.allocate(format, 0, 0, usages, torch.device("meta"))
    return {**model, "amax": spanning.amax, "history": spanning.history}


def _check_like(owner: Owner, part: str, tensor: torch.Tensor, model: torch.Tensor) -> None:
    if tensor.dtype != model.dtype:
        owner.refuse(f"{part} is {tensor.dtype}, not {model.dtype}", TypeError)
    # An empty tensor keeps the buffers of the empty matrix that it was made as.
    if tensor.shape != model.shape and not tensor.numel() == model.numel() == 0:
        owner.refuse(f"{part} has shape {tuple(tensor.shape)}, not {tuple(model.shape)}")
    if part != "master" and not tensor.is_contiguous():
        owner.refuse(f"{part} is not contiguous (strides {tensor.stride()})")


def _check_magnitudes(owner: Owner, part: str, tensor: torch.Tensor | None) -> None:
    """Of amaxes, and of the multipliers with which a history begins."""
    if tensor is None or not memory.has_values(tensor):
        return
    if not memory.are_magnitudes(tensor):
        owner.refuse(f"{part} has negative numbers or NaN")
    multipliers = tensor[:2]
    if part == "history" and not bool(((multipliers > 0) & multipliers.isfinite()).all()):
        owner.refuse(
            f"history begins with {multipliers.tolist()}, and multipliers of encoding are positive "
            "and finite"
        )
