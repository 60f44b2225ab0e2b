"""What the handlers of operators share."""

from torch.utils._pytree import tree_leaves, tree_map_only

from narrowcast.tensor import QuantizedTensor


def bound(func, args, kwargs) -> dict:
    """The arguments of a call by name, defaults included."""
    arguments = func._schema.arguments
    values = {one.name: one.default_value for one in arguments if one.has_default_value()}
    values.update(zip((one.name for one in arguments), args, strict=False))
    values.update(kwargs)
    return values


def run_on_values(func, args, kwargs, value=lambda one: one.decode(one.dtype)):
    """Runs a function with value(tensor) for each QuantizedTensor: its decoded value by default."""
    args, kwargs = tree_map_only(QuantizedTensor, value, (args, kwargs))
    return func(*args, **kwargs)


def refuse(values, func, reason: str):
    """The error of an operation that cannot act on the first QuantizedTensor of a nest."""
    name = func._schema.name.removeprefix("aten::")
    first = next(leaf for leaf in tree_leaves(values) if isinstance(leaf, QuantizedTensor))
    raise NotImplementedError(f"{first.describe()}: {name} {reason}")
