"""The two tables that decide what an operation does with a QuantizedTensor, and what the schema of
an operator says of its arguments.

FUNCTIONS: torch functions that must be seen above autograd. OPERATORS: ATen operators that act on
the bytes; all others are arithmetic (narrowcast.operators.arithmetic).
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten

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


def in_transform() -> bool:
    """Whether a transform (torch.func, torch.vmap) or forward-mode differentiation is active."""
    transform = torch._C._functorch.peek_interpreter_stack()
    return transform is not None or torch.autograd.forward_ad._current_level >= 0


def in_backward() -> bool:
    """Whether autograd runs a backward. A recomputation of activation checkpointing is none: it
    runs with gradients enabled, as does a derivative that is to be differentiated again.
    """
    return torch._C._current_graph_task_id() != -1 and not torch.is_grad_enabled()


def run_operator(func, args, kwargs):
    """What __torch_dispatch__ does."""
    handler = OPERATORS.get(func)
    if handler is not None:
        return handler(func, args, kwargs)
    # In inference mode nothing before has taken apart what others are composed of.
    if torch.is_inference_mode_enabled() and func._can_decompose():
        return func.decompose(*args, **kwargs)
    return OPERATORS[None](func, args, kwargs)


# ---- what an operator does with its arguments, as its schema says ----


class Facts(NamedTuple):
    """written        the places and names of the arguments that it writes to
    is_view        what it returns is over the memory of an argument
    reshapes       it changes the shape, or the memory, of an argument in place
    is_collective  of torch.distributed
    """

    written: tuple[tuple[int, str], ...]
    is_view: bool
    reshapes: bool
    is_collective: bool


@functools.cache
def facts(func) -> Facts:
    every = enumerate(func._schema.arguments)
    written = [(at, one.name) for at, one in every if one.alias_info and one.alias_info.is_write]
    # The schemas of these do not say what they write to: it is their first argument.
    is_collective = func.namespace == "c10d"
    if is_collective and func is not torch.ops.c10d.send.default:
        written = [(0, func._schema.arguments[0].name)]
    returns = func._schema.returns
    # One that looks at the bytes of a float as another dtype makes a plain tensor.
    is_view = not written and func is not aten.view.dtype
    is_view = is_view and bool(returns) and returns[0].alias_info is not None
    reshapes = torch.Tag.inplace_view in func.tags and func is not aten.detach_.default
    return Facts(tuple(written), is_view, reshapes, is_collective)


def written_leaves(func, args, kwargs) -> list[torch.Tensor]:
    """The tensors that a call writes to."""
    written = facts(func).written
    every = [args[at] if at < len(args) else kwargs.get(name) for at, name in written]
    return [one for one in tree_leaves(every) if isinstance(one, torch.Tensor)]
