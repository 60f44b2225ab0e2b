"""Products of ATen with quantized operands: what composite functions that hide their F.linear come
to, and products with views. A product decodes the usage that its pass reads, so autograd, which
saves the operand itself, decodes in the backward what has been gathered for that.
"""

import torch

from narrowcast.operators import table, traced_values
from narrowcast.operators.common import in_backward, run_on_values
from narrowcast.tensor import LOGICAL_DTYPES, QuantizedTensor
from narrowcast.tensor.dispatch import implements


@implements(*table.PRODUCT.operators)
def product(func, args, kwargs):
    """A product of decoded values, in the dtype of the plain operands."""
    operands = [one for one in (*args, *kwargs.values()) if isinstance(one, torch.Tensor)]
    plain = [one for one in operands if not isinstance(one, QuantizedTensor)]
    dtype = next((one.dtype for one in plain if one.dtype in LOGICAL_DTYPES), None)
    backward = in_backward()

    def value(tensor: QuantizedTensor) -> torch.Tensor:
        if not tensor._store.bytes.is_plain:
            return traced_values.read(tensor, dtype or tensor.dtype, backward, plain)
        return tensor._view.read(dtype or tensor.dtype, backward).reshape(tensor.shape)

    return run_on_values(func, args, kwargs, value)
