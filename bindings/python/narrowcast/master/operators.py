"""Operators of torch that act on a weight in another way than on other tensors."""

import torch

aten = torch.ops.aten

# Copies that stay weights, with bytes of their own once a product reads them. What else is made of
# a value is a plain tensor.
COPIES = {
    *(aten.clone.default, aten._to_copy.default, aten._pin_memory.default),
    *(aten.new_zeros.default, aten.empty_like.default),
}
# Operators in place that convert other tensors themselves.
CONVERTING = {aten.copy_.default, aten._foreach_copy_.default}


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
