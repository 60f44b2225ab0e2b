"""What the handlers of operators share."""

from __future__ import annotations

from torch.utils._pytree import tree_leaves

from narrowcast.tensor import QuantizedTensor


def bound(func, args, kwargs) -> dict:
    """The arguments of a call by name, defaults included."""
    arguments = func._schema.arguments
    values = {one.name: one.default_value for one in arguments if one.has_default_value()}
    values.update(zip((one.name for one in arguments), args, strict=False))
    values.update(kwargs)
    return values


def first_quantized(values) -> QuantizedTensor:
    """The first QuantizedTensor of a nest of arguments."""
    return next(leaf for leaf in tree_leaves(values) if isinstance(leaf, QuantizedTensor))


def refuse(tensor: QuantizedTensor, func, reason: str):
    """The error of an operation that cannot act on the bytes."""
    name = func._schema.name.removeprefix("aten::")
    raise NotImplementedError(f"{tensor.describe()}: {name} {reason}")


def refuse_flat(tensor: QuantizedTensor, func) -> None:
    if tensor.is_flat:
        refuse(tensor, func, "of a flat view: it serves views back, copies and storage queries")
