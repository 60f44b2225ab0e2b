"""Changes of the arguments of narrowcast.tensor.rebuild: each is change(rng, arguments), and says
what it has changed.
"""

import math

import torch
from torch import nn

import narrowcast as nc
from narrowcast.tensor.checks import NAMES

FIELDS = (
    *("format", "shape", "dtype", "tensors", "name", "recompute", "partial", "flattened"),
    *("requires_grad", "is_parameter", "matmul"),
)
TENSORS = FIELDS.index("tensors")
_ODD = (
    *(None, True, False, 0, 1, -1, 7, 2**31, 2**48, 2**63 - 1, 2**63, 2**64, -(2**63), 2**1999),
    *(0.5, float("nan"), "", "x", "gr\u00fcn \u2603", "\ud800", "\0", "x" * 5000, b"", b"\xff", ()),
    *([], {}, (1,), (0, 0), (64, 64), [64, 64], (2**40, 2**40), (1,) * 200, (2**62, 0), ("a", 1)),
    *((-1, -1), (0.5, 2), ((),), [[]], {"a": 1}, torch.float64, torch.uint8, torch.bfloat16),
    *("dequantized", "scaled", torch.Size([64, 64]), torch.Size([])),
)
_FLOATS = (float("nan"), float("inf"), -float("inf"), -1.0, -0.0, 0.0, 1.0, 3e38, 1e-45)
_DTYPES = (
    *(torch.uint8, torch.int8, torch.bool, torch.int64, torch.float16, torch.bfloat16),
    *(torch.float32, torch.float64, torch.complex64, torch.float8_e4m3fn),
)


# ---- changes of a tensor ----


def _a_tensor(rng, arguments) -> int | None:
    """The index of a tensor that is there."""
    there = [i for i, one in enumerate(arguments[TENSORS]) if type(one) is torch.Tensor]
    return rng.choice(there) if there else None


def has_memory(tensor) -> bool:
    """Whether it is one whose elements torch can read without a crash: of a storage that was cut
    short, torch reads what lies behind it.
    """
    if tensor.layout != torch.strided or tensor.is_nested or tensor.is_quantized:
        return False
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    end = (tensor.storage_offset() + last + 1) * tensor.itemsize
    return tensor.numel() == 0 or end <= tensor.untyped_storage().nbytes()


def _of_tensor(change):
    """A change of one tensor that is there: change(rng, tensor) makes another."""

    def run(rng, arguments):
        index = _a_tensor(rng, arguments)
        if index is None or not has_memory(arguments[TENSORS][index]):
            return "nothing"
        try:
            made = change(rng, arguments[TENSORS][index])
        except (RuntimeError, TypeError, ValueError, IndexError):  # not of this tensor
            return "nothing"
        arguments[TENSORS][index] = made
        return NAMES[index] if index < len(NAMES) else index

    run.__name__ = change.__name__
    return run


@_of_tensor
def _drop(rng, tensor):
    return None


@_of_tensor
def _dtype(rng, tensor):
    dtype = rng.choice(_DTYPES)
    return tensor.view(dtype) if rng.random() < 0.3 else tensor.to(dtype)


@_of_tensor
def _shape(rng, tensor):
    flat = tensor.reshape(-1)
    return rng.choice(
        (
            lambda: flat,
            lambda: tensor.unsqueeze(rng.randint(0, tensor.dim())),
            lambda: tensor.t().contiguous(),
            lambda: torch.cat([tensor, tensor]),
            lambda: tensor[: rng.randint(0, len(tensor))].clone(),
            lambda: flat[: rng.randint(0, len(flat))].clone(),
            lambda: tensor.new_zeros(()),
            lambda: tensor.new_zeros((1,) * 100),
        )
    )()


@_of_tensor
def _strides(rng, tensor):
    zeros = [0 if rng.random() < 0.5 else step for step in tensor.stride()]
    wider = torch.stack([tensor, tensor], -1)
    return rng.choice(
        (
            lambda: tensor.as_strided(tensor.shape, zeros),
            lambda: tensor.t().contiguous().t(),
            lambda: wider[..., 0],
            lambda: tensor.new_ones(()).expand(tensor.shape),
            lambda: torch.cat([tensor.reshape(-1)] * 2)[tensor.numel() :].view(tensor.shape),
        )
    )()


@_of_tensor
def _place(rng, tensor):
    if rng.random() < 0.5:
        return tensor.to("meta")
    tensor = tensor.clone()
    tensor.untyped_storage().resize_(rng.randrange(0, tensor.nbytes))
    return tensor


@_of_tensor
def _values(rng, tensor):
    tensor = tensor.clone()
    flat = tensor.view(-1)
    if tensor.dtype == torch.float32:
        chosen = slice(None) if rng.random() < 0.2 else rng.choice((0, 1, 2, -1))
        flat[chosen] = rng.choice(_FLOATS)
    else:
        flat[:] = torch.randint(0, 256, flat.shape, dtype=torch.uint8)
    return tensor


@_of_tensor
def _kind(rng, tensor):
    return rng.choice(
        (
            lambda: rng.choice(_ODD),
            lambda: [tensor],
            lambda: nn.Parameter(tensor, requires_grad=False),
            lambda: tensor.clone().requires_grad_(),
            lambda: tensor.to_sparse(),
            lambda: tensor.to_sparse_csr(),
            lambda: torch._neg_view(tensor),
            lambda: torch.nested.nested_tensor([tensor, tensor]),
            lambda: torch.quantize_per_tensor(tensor.float(), 1.0, 0, torch.quint8),
            lambda: tensor.untyped_storage(),
            lambda: nc.quantize(torch.ones(128, 128), rng.choice(nc.formats())),
        )
    )()


def _swap(rng, arguments):
    i, j = (rng.randrange(len(arguments[TENSORS])) for _ in range(2)) if arguments[3] else (0, 0)
    tensors = arguments[TENSORS]
    if tensors:
        tensors[i], tensors[j] = tensors[j], tensors[i]
    return i, j


def _share(rng, arguments):
    """One tensor over another's memory."""
    i, j = _a_tensor(rng, arguments), _a_tensor(rng, arguments)
    if i is None or i == j:
        return "nothing"
    tensors = arguments[TENSORS]
    one, other = tensors[i], tensors[j]
    try:
        tensors[i] = other.reshape(-1)[: one.numel()].view(one.shape)
    except RuntimeError:
        tensors[i] = other
    return i, j


def _fill_in(rng, arguments):
    """A tensor where there was none."""
    absent = [i for i, one in enumerate(arguments[TENSORS]) if one is None]
    shape = rng.choice(((1,), (1026,), (64, 64), (128, 128), ()))
    if absent:
        arguments[TENSORS][rng.choice(absent)] = torch.zeros(shape, dtype=rng.choice(_DTYPES))
    return absent


def _number(rng, arguments):
    """More tensors, or fewer; arguments likewise."""
    if rng.random() < 0.5:
        tensors = arguments[TENSORS]
        arguments[TENSORS] = rng.choice((tensors[:-1], [*tensors, None], tensors[:4], [], tensors))
    else:
        arguments[:] = arguments[: rng.randint(1, len(FIELDS))] + [None] * rng.choice((0, 0, 1))
    return len(arguments)


# ---- changes of a fact ----


def _fact(rng, arguments):
    index = rng.randrange(len(FIELDS))
    arguments[index] = rng.choice(_ODD)
    return FIELDS[index]


def _sensible_fact(rng, arguments):
    """Another value of the right type."""
    flags = ("recompute", "partial", "requires_grad", "is_parameter")
    field, value = rng.choice(
        (
            ("format", rng.choice(nc.formats())),
            ("dtype", rng.choice((torch.float32, torch.bfloat16, torch.float16))),
            ("matmul", rng.choice(("dequantized", "scaled"))),
            ("name", rng.choice((None, "", "a.weight", "gr\u00fcn", "\ud800\n", "x" * 1000))),
            *((flag, rng.random() < 0.5) for flag in flags),
        )
    )
    arguments[FIELDS.index(field)] = value
    return field, value


def _sizes(rng, arguments):
    """Another shape, perhaps of as many elements."""
    field = rng.choice(("shape", "shape", "flattened"))
    index = FIELDS.index(field)
    sizes = arguments[index] if isinstance(arguments[index], tuple) else arguments[1]
    sizes = list(sizes) if isinstance(sizes, tuple) else [64, 64]
    at = rng.randrange(len(sizes)) if sizes else None
    step = rng.choice(("turn", "one", "joined", "list", "size", "size", "size", "odd", "none"))
    if step == "turn":
        sizes.reverse()
    elif step == "one":
        sizes.insert(rng.randint(0, len(sizes)), 1)
    elif step == "joined" and all(type(size) is int for size in sizes):
        sizes = [math.prod(sizes)]
    elif at is not None and step == "size" and type(sizes[at]) is int:
        size = sizes[at]
        sizes[at] = rng.choice((size + 1, size - 1, 2 * size, size // 2, -size, 0, size + 2**64))
    elif at is not None and step == "odd":
        sizes[at] = rng.choice(_ODD)
    arguments[index] = sizes if step == "list" else None if step == "none" else tuple(sizes)
    return field, step


_OF_TENSORS = (_drop, _dtype, _shape, _strides, _place, _values, _values, _kind)
CHANGES = (
    *(*_OF_TENSORS, _swap, _share, _fill_in, _number),
    *(_fact, _sensible_fact, _sensible_fact, _sizes, _sizes),
)
