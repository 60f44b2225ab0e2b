"""What torch's operators do with their arguments, as their schemas say."""

import functools
from typing import NamedTuple

import torch
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten

# Copies that stay weights, with bytes of their own once a product reads them. What else is made of
# a value is a plain tensor.
COPIES = {
    *(aten.clone.default, aten._to_copy.default, aten._pin_memory.default),
    *(aten.new_zeros.default, aten.empty_like.default),
}

# The dtypes that a weight may announce over its float32 value.
HALVES = (torch.bfloat16, torch.float16)
# Operators in place that convert other tensors themselves.
CONVERTING = {aten.copy_.default, aten._foreach_copy_.default}


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


def written_leaves(written, args, kwargs) -> list[torch.Tensor]:
    """The tensors that a call writes to."""
    every = [args[at] if at < len(args) else kwargs.get(name) for at, name in written]
    return [one for one in tree_leaves(every) if isinstance(one, torch.Tensor)]


def is_fused(func) -> bool:
    """Whether it is the step of an optimizer with fused=True."""
    return func._schema.name.startswith("aten::_fused_")


def one_by_one(places: list[int], length: int, args, kwargs):
    """The arguments of an operator over lists of a length: for each of the places alone, and for
    all others together. What is widened of them takes memory of one tensor at a time.
    """
    rest = [at for at in range(length) if at not in places]
    for some in (*([at] for at in places), *([rest] if rest else [])):

        def chosen(argument, some=some):
            is_list = isinstance(argument, (list, tuple)) and len(argument) == length
            return [argument[at] for at in some] if is_list else argument

        yield [*map(chosen, args)], {key: chosen(one) for key, one in kwargs.items()}
