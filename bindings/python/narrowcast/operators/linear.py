"""F.linear with a quantized weight: a product with its decoded value, by operators of torch that
are defined in C++ (bindings/matmul/linear.cpp).
"""

import torch
import torch.nn.functional as F
from torch.distributed._functional_collectives import AsyncCollectiveTensor

from narrowcast import _C
from narrowcast.operators import traced_values
from narrowcast.operators.common import in_transform
from narrowcast.registry import USAGES, buffers_of
from narrowcast.tensor import QuantizedTensor, compiling
from narrowcast.tensor.dispatch import handles, implements
from narrowcast.tensor.transposed import Transposed

ops = torch.ops.narrowcast


@handles(F.linear)
def linear(func, args, kwargs):
    """torch.nn.functional.linear where at least one operand is a QuantizedTensor.

    input: [..., in_features]; weight: [out_features, in_features]; bias: [out_features] or None.
    The product is in the dtype of the input, or in autocast's.
    """
    input, weight, bias = _operands(*args, **kwargs)
    if not isinstance(weight, QuantizedTensor):
        return F.linear(input, weight, bias)
    is_scaled = weight._store.config.matmul == "scaled"
    if isinstance(weight, Transposed) or in_transform():
        return _by_operators(input, weight, bias, is_scaled)
    result = _C.linear(input, weight, bias, is_scaled)
    return _other_product(input, weight, bias) if result is None else result


def _operands(input, weight, bias=None):
    """As input or bias, a QuantizedTensor is just a number of values."""
    if isinstance(input, QuantizedTensor):
        input = input.dequantize(input.dtype)
    if isinstance(bias, QuantizedTensor):
        bias = bias.dequantize(bias.dtype)
    return input, weight, bias


def _by_operators(input, weight: QuantizedTensor, bias, is_scaled: bool):
    """A product that comes as operators of ATen, which have all derivatives and batching rules."""
    if is_scaled:
        raise NotImplementedError(
            f"{weight.describe()}: scaled products are those of F.linear with the weight itself, "
            "outside of torch.func's transforms and forward-mode differentiation. Convert with "
            'matmul="dequantized" for others'
        )
    product = torch.matmul(input, weight.transpose(-1, -2))
    return product if bias is None else product + bias


def _other_product(input, weight: QuantizedTensor, bias):
    """A product that is no matrix product of float32, bfloat16 or float16, or of a nest of such."""
    if not input.is_nested and weight.dim() == 2 and input.shape[-1:] != weight.shape[1:]:
        raise ValueError(
            f"{weight.describe()}: the last dimension of an input of shape {tuple(input.shape)} is "
            f"not {weight.shape[1]}"
        )
    return F.linear(input, weight.dequantize(weight.dtype), bias)


# ---- what the operators ask of Python ----


def _operand_of(weight: QuantizedTensor) -> _C.Buffers:
    return weight._view.operand()


def _unread_bytes_of(weight: QuantizedTensor) -> _C.Buffers:
    return weight._view.store.bytes


def _key_of(weight: QuantizedTensor) -> int:
    view = weight._view
    return hash((id(view.store), view.region, view.exchanged))


def _read(weight: QuantizedTensor, operand: torch.Tensor, backward: bool) -> torch.Tensor:
    return traced_values.read(weight, operand.dtype, backward, [operand])


def _refuse(weight: QuantizedTensor, backward: bool):
    raise weight._store.usage_absent(USAGES[backward])


def _plain_of(activation: torch.Tensor, weight: QuantizedTensor) -> torch.Tensor:
    """The values of an input or gradient whose memory a cast cannot read as it is."""
    if isinstance(activation, AsyncCollectiveTensor):
        return activation.wait()
    if activation.layout is not torch.strided:
        return activation.to_dense()
    raise TypeError(
        f"{weight.describe()}: scaled products cast the memory of an input or gradient, and a "
        f"{type(activation).__name__} of shape {tuple(activation.shape)} on {activation.device} "
        "has none that they know. Give the layer a plain tensor on the weight's device, or convert "
        'with matmul="dequantized"'
    )


_ASKED = _operand_of, _unread_bytes_of, _key_of, _read, _refuse, _plain_of
_C.set_operands(*_ASKED)
for _function in _ASKED:
    compiling.leave_alone(_function)


# ---- where autograd is not at work, as in inference mode; and in traces ----


@implements(ops.linear.default)
def _linear(func, args, kwargs):
    input, weight, bias = args
    return F.linear(input, _read(weight, input, False), bias)


def _stored_usage(weight: QuantizedTensor, backward: bool) -> tuple[_C.Buffers, int]:
    """The bytes that a product of a pass reads, and the number of their usage."""
    bytes = weight._view.operand()
    usage = bytes.product_usage(backward)
    if usage < 0:
        _refuse(weight, backward)
    return bytes, usage


@implements(ops.scaled_linear.default)
def _scaled_linear(func, args, kwargs):
    return _C.scaled_linear_without_autograd(*args)


@implements(ops.scaled_by_weight.default)
def _traced_scaled_by_weight(func, args, kwargs):
    operand, weight, backward, dtype = args
    products = weight.format.matmul
    cast_to = products.gradient if backward else products.input
    product = products.input_gradient if backward else products.forward
    stored, usage = _stored(weight, backward, product)
    return ops.scaled_product(
        *(operand, cast_to, 0, False, stored, weight.format.name, usage, backward),
        *(weight._store.present, product.number, not backward, dtype),
    )


@implements(ops.scaled_gradients_by_weight.default)
def _traced_scaled_gradients(func, args, kwargs):
    gradient, weight, input, of_input, of_weight = args
    products = weight.format.matmul
    # The weight's own gradient needs none of its bytes.
    stored, usage = _stored(weight, True, products.input_gradient) if of_input else ([], 0)
    run = ops.scaled_gradients
    if products.stochastic_gradient:
        run = ops.scaled_gradients_stochastic
    return run(
        *(gradient, stored, weight.format.name, usage, weight._store.present),
        *(input, of_input, of_weight, weight.dtype),
    )


def _stored(weight: QuantizedTensor, backward: bool, product) -> tuple[list[torch.Tensor], int]:
    """The tensors of a weight as a scaled product reads them, and the number of their usage."""
    bytes, usage = _stored_usage(weight, backward)
    if _C.prefers_columnwise(bytes, backward, product.number):
        usage = 1
    stored = [*map(bytes.buffer, buffers_of(USAGES[usage]))]
    return stored + [bytes.amax] * bytes.format.tensor_amax, usage
