"""What torch.utils.flop_counter.FlopCounterMode counts of products with quantized weights: two
operations for each element that is multiplied, as of plain ones.
"""

import functools

import torch

from narrowcast.tensor import compiling


def _linear(input, weight, bias, *, out_val) -> int:
    return 2 * input.numel() * weight.shape[0]


def _scaled_by_weight(operand, weight, backward, dtype, *, out_val) -> int:
    return 2 * out_val.numel() * weight.shape[0 if backward else 1]


def _scaled_product(a, a_format, a_usage, a_over_rows, *_, out_val) -> int:
    summed = compiling.matrix_of(a_format, a_usage, a[0])[not a_over_rows]
    return 2 * out_val.numel() * summed


def _scaled_gradients_by_weight(gradient, weight, input, of_input, of_weight, *, out_val) -> int:
    return 2 * gradient.numel() * weight.shape[1] * (of_input + of_weight)


def _scaled_gradients(gradient, *_, out_val) -> int:
    return 2 * gradient.numel() * out_val[0].shape[1] * len(out_val)


_FORMULAS = {
    "linear": _linear,
    "scaled_by_weight": _scaled_by_weight,
    "scaled_product": _scaled_product,
    "scaled_gradients_by_weight": _scaled_gradients_by_weight,
    "scaled_gradients": _scaled_gradients,
    "scaled_gradients_stochastic": _scaled_gradients,
}


@functools.cache
def register() -> None:
    """Enters the formulas. Not when narrowcast is imported: torch's module about them takes a tenth
    of a second.
    """
    from torch.utils.flop_counter import register_flop_formula

    for name, formula in _FORMULAS.items():
        register_flop_formula(getattr(torch.ops.narrowcast, name), get_raw=True)(formula)
