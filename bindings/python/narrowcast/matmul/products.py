"""Products of matrices with quantized operands other than F.linear: torch's functions of them, and
the operators of ATen that they and other composite functions come to.
"""

import torch
import torch.nn.functional as F

from narrowcast.matmul.operators import weight_value
from narrowcast.operators.common import run_on_values
from narrowcast.tensor import LOGICAL_DTYPES, QuantizedTensor
from narrowcast.tensor.dispatch import as_torch_does, handles, implements, in_backward

aten, Tensor = torch.ops.aten, torch.Tensor


@implements(
    *(aten.mm.default, aten.bmm.default, aten.mv.default, aten.addmm.default),
    *(aten.baddbmm.default, aten.linear.default, aten.matmul.default, aten._grouped_mm.default),
)
def product(func, args, kwargs):
    """A product of decoded values, in the dtype of the plain operands. It decodes the usage that
    its pass reads, so autograd, which saves the operand itself, decodes in the backward what has
    been gathered for that.
    """
    operands = [one for one in (*args, *kwargs.values()) if isinstance(one, torch.Tensor)]
    plain = [one for one in operands if not isinstance(one, QuantizedTensor)]
    dtype = next((one.dtype for one in plain if one.dtype in LOGICAL_DTYPES), None)
    backward = in_backward()

    def value(tensor: QuantizedTensor) -> torch.Tensor:
        if not tensor._store.bytes.is_plain:
            return weight_value(tensor, dtype or tensor.dtype, backward, plain)
        usage = tensor._view.own_usage(tensor._store.product_usage(backward))
        return tensor.decode(dtype or tensor.dtype, usage)

    return run_on_values(func, args, kwargs, value)


# ---- functions that must be seen above autograd ----


@handles(torch.matmul, Tensor.matmul, Tensor.__matmul__, Tensor.__rmatmul__)
def _matmul(func, args, kwargs):
    """As mm and bmm, whose operands are as they come: torch.matmul expands or permutes its own."""
    if kwargs.get("out") is not None:
        return _decoded(torch.matmul, args, kwargs)
    a, b = args if len(args) == 2 else (*args, kwargs["other"])
    if func is Tensor.__rmatmul__:
        a, b = b, a
    if b.dim() == 2 and a.dim() == 1:
        return torch.mv(b.t(), a)
    if b.dim() == 2 and a.dim() >= 2:
        return torch.mm(a.reshape(-1, a.shape[-1]), b).unflatten(0, a.shape[:-1])
    if a.dim() == b.dim() == 3 and a.shape[0] == b.shape[0]:
        return torch.bmm(a, b)
    return _decoded(torch.matmul, (a, b), kwargs)


@handles(
    *(torch.dot, torch.inner, torch.tensordot, torch.einsum, torch.addmv, torch.addbmm),
    *(Tensor.dot, Tensor.inner, Tensor.addmv, Tensor.addbmm, F.bilinear),
)
def _decoded(func, args, kwargs):
    """Sees the decoded value from the start, of which the backward keeps a copy."""
    if isinstance(kwargs.get("out"), QuantizedTensor):
        return as_torch_does(func, args, kwargs)  # which ends in an error
    return run_on_values(func, args, kwargs, lambda tensor: tensor.dequantize(tensor.dtype))
