"""F.linear with a weight, in training or of bytes alone: one call of C++, or none."""

import torch

from narrowcast import _C
from narrowcast.tensor import compiling


def by_one_call(input, weight, bias) -> torch.Tensor | None:
    """The product of a QuantizedTensor or a MasterWeight whose bytes are fresh. None: no matrix
    product of float32, bfloat16 or float16, or one of a nest of such.
    """
    view = weight._view
    is_scaled = view.store.config.matmul == "scaled"
    if _C.is_watched():
        compiling.check_export(weight.describe())
        return _C.linear(input, weight, bias, is_scaled)
    return _C.linear(input, weight, bias, is_scaled, view.operand(), view.key if is_scaled else 0)


def check_transform(weight) -> None:
    """NotImplementedError of a weight whose products are scaled."""
    if weight.config.matmul == "scaled":
        raise NotImplementedError(
            f"{weight.describe()}: scaled products are those of F.linear with the weight itself, "
            "outside of torch.func's transforms and forward-mode differentiation. Convert with "
            'matmul="dequantized" for others'
        )
