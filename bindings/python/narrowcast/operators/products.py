"""Products of ATen with quantized operands: what composite functions that hide their F.linear come
to, and products with views. A product decodes the usage that its pass reads, so autograd, which
saves the operand itself, decodes in the backward what has been gathered for that.
"""

import torch

from narrowcast.operators import table, traced_products
from narrowcast.operators.common import in_backward, run_on_values
from narrowcast.tensor import LOGICAL_DTYPES, QuantizedTensor
from narrowcast.tensor.dispatch import implements


@implements(*table.PRODUCT.operators)
def product(func, args, kwargs):
    """A product of decoded values, in the dtype of the plain operands."""
    operands = [one for one in (*args, *kwargs.values()) if isinstance(one, torch.Tensor)]
    plain = (one.dtype for one in operands if not isinstance(one, QuantizedTensor))
    dtype = next((one for one in plain if one in LOGICAL_DTYPES), None)
    backward = in_backward()
    if any(_is_traced(one) for one in operands):
        return traced_products.run(func, args, kwargs, dtype, backward)

    def value(tensor: QuantizedTensor) -> torch.Tensor:
        return tensor._view.read(dtype or tensor.dtype, backward).reshape(tensor.shape)

    return run_on_values(func, args, kwargs, value)


def _is_traced(operand: torch.Tensor) -> bool:
    return isinstance(operand, QuantizedTensor) and not operand._store.bytes.is_plain
