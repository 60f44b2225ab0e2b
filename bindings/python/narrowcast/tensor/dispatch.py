"""The two tables that decide what an operation does with a QuantizedTensor.

FUNCTIONS: torch functions that must be seen above autograd. OPERATORS: ATen operators that act on
the bytes; all others are arithmetic (narrowcast.operators.arithmetic).
"""

from collections.abc import Callable

import torch

FUNCTIONS: dict[Callable, Callable] = {}
OPERATORS: dict[Callable, Callable] = {}
PARAMETER_LOADED: list[Callable[[], None]] = []  # called when a parameter has been unpickled


def handles(*functions):
    """Enters a handler(func, args, kwargs) for torch functions."""
    return enter(FUNCTIONS, functions)


def implements(*operators):
    """Enters a handler(func, args, kwargs) for ATen operators; None stands for all others."""
    return enter(OPERATORS, operators)


def enter(table, keys):
    """Enters what it decorates in a table."""

    def register(handler):
        table.update(dict.fromkeys(keys, handler))
        return handler

    return register


def as_torch_does(func, args, kwargs):
    """Runs a function down to its operators, which come to the other table."""
    with torch._C.DisableTorchFunctionSubclass():
        return func(*args, **kwargs)


def become(tensor: torch.Tensor, kind: type) -> None:
    """Makes a tensor one of another class of the same attributes."""
    tensor.__class__ = kind


def in_transform() -> bool:
    """Whether a transform (torch.func, torch.vmap) or forward-mode differentiation is active."""
    transform = torch._C._functorch.peek_interpreter_stack()
    return transform is not None or torch.autograd.forward_ad._current_level >= 0


def run_operator(func, args, kwargs):
    """What __torch_dispatch__ does."""
    handler = OPERATORS.get(func)
    if handler is not None:
        return handler(func, args, kwargs)
    # In inference mode nothing before has taken apart what others are composed of.
    if torch.is_inference_mode_enabled() and func._can_decompose():
        return func.decompose(*args, **kwargs)
    return OPERATORS[None](func, args, kwargs)
