"""torch functions on QuantizedTensors that must be seen above autograd."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_map_only

from narrowcast import errors
from narrowcast.fsdp import sharding
from narrowcast.tensor import QuantizedTensor
from narrowcast.tensor.dispatch import handles


@handles(torch.chunk, torch.Tensor.chunk)
def _chunk(func, args, kwargs):
    return sharding.chunk(*args, **kwargs)


# The backward of a matrix product transposes its operands, and bytes cannot be transposed without
# their format's leave; so these see the decoded value from the start.
@handles(
    *(torch.matmul, torch.mm, torch.bmm, torch.mv, torch.dot, torch.inner, torch.tensordot),
    *(torch.addmm, torch.addmv, torch.addbmm, torch.baddbmm, torch.einsum, F.bilinear),
    *(torch.Tensor.matmul, torch.Tensor.mm, torch.Tensor.bmm, torch.Tensor.mv, torch.Tensor.dot),
    *(torch.Tensor.addmm, torch.Tensor.addmv, torch.Tensor.addbmm, torch.Tensor.baddbmm),
    *(torch.Tensor.__matmul__, torch.Tensor.__rmatmul__, torch.Tensor.inner),
)
def _product(func, args, kwargs):
    def decoded(values):
        return tree_map_only(QuantizedTensor, lambda one: one.dequantize(one.dtype), values)

    return func(*decoded(args), **decoded(kwargs))


@handles(torch.Tensor.float, torch.Tensor.bfloat16, torch.Tensor.half, torch.Tensor.double)
def _to_plain(func, args, kwargs):
    tensor, *rest = args
    return func(tensor.dequantize(torch.float32), *rest, **kwargs)


@handles(
    *(torch.Tensor.numpy, torch.Tensor.tolist, torch.Tensor.__array__, torch.Tensor.__dlpack__),
    *(torch.Tensor.apply_, torch.Tensor.map_, torch.Tensor.map2_),
)
def _needs_memory(func, args, kwargs):
    """Functions that would read a tensor's memory: a wrapper has none."""
    tensor = next(one for one in args if isinstance(one, QuantizedTensor))
    raise errors.has_no_memory(tensor._store, func.__name__)


@handles(torch.Tensor.share_memory_)
def _share_memory(func, args, kwargs):
    for tensor in args[0]._store.tensors:
        tensor.share_memory_()
    return args[0]


@handles(torch.Tensor.is_shared)
def _is_shared(func, args, kwargs):
    return all(tensor.is_shared() for tensor in args[0]._store.tensors)


@handles(torch._has_compatible_shallow_copy_type)
def _replace(func, args, kwargs):
    """nn.Module asks this before it puts a converted tensor in a parameter's place."""
    tensor, converted = args
    if isinstance(tensor, QuantizedTensor) and not isinstance(converted, QuantizedTensor):
        raise errors.replaces_quantized(tensor._store)
    with torch._C.DisableTorchFunctionSubclass():
        return func(*args, **kwargs)


@handles(torch.Tensor.data.__set__)
def _assign_data(func, args, kwargs):
    if isinstance(args[0], QuantizedTensor):
        raise errors.replaces_data(args[0]._store)
    with torch._C.DisableTorchFunctionSubclass():
        return func(*args, **kwargs)
