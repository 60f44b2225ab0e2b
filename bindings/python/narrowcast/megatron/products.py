"""The three products of a linear layer one by one, so that a backward can communicate between two
of them. F.linear makes the same (narrowcast.operators.linear), the two of its backward in one go.
"""

import math

import torch
import torch.nn.functional as F

from narrowcast import _C, registry
from narrowcast.operators import traced_values
from narrowcast.tensor import QuantizedTensor

ops = torch.ops.narrowcast


def of(weight: QuantizedTensor):
    """The products that a weight was converted for."""
    scaled = weight._store.config.matmul == "scaled"
    return Scaled(weight) if scaled else Decoded(weight)


class Decoded:
    """Those of the decoded weight and of activations as they are."""

    keeps_bytes = False  # the backward needs the input itself

    def __init__(self, weight: QuantizedTensor):
        self.weight = weight

    def forward(self, input: torch.Tensor, keep: bool) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """The output [..., out_features] of an input [..., in_features], in its dtype, and, if the
        backward shall make the weight's gradient, the bytes to keep for it.
        """
        return F.linear(input, self.weight), []

    def operand(self, gradient: torch.Tensor, rowwise: bool, columnwise: bool) -> torch.Tensor:
        """The gradient of the output, [..., out_features], as the next two take it: `rowwise` and
        `columnwise` say which of them will.
        """
        return gradient

    def input_gradient(self, gradient: torch.Tensor) -> torch.Tensor:
        """[..., in_features], in the gradient's dtype."""
        return gradient.matmul(traced_values.read(self.weight, gradient.dtype, True, [gradient]))

    def weight_gradient(self, gradient: torch.Tensor, input: torch.Tensor) -> torch.Tensor:
        """[out_features, in_features], from the whole input [..., in_features]."""
        return gradient.flatten(0, -2).t().matmul(input.flatten(0, -2))


class Scaled:
    """Those of bytes: input and gradient are cast to the formats that the weight's format names
    (docs/matmul.md). Methods as above.
    """

    keeps_bytes = True

    def __init__(self, weight: QuantizedTensor):
        self.weight, self.facts = weight, weight.format.matmul
        name, device = weight.format.name, weight.device
        self.row_multiple = _C.row_multiple(name, device, weight_gradient=True)

    def forward(self, input, keep):
        rowwise, columnwise = self._cast(input, self.facts.input, True, keep, False)
        product = ops.scaled_by_weight(rowwise, self.weight, False, input.dtype)
        return _unpadded(product, input), columnwise

    def operand(self, gradient, rowwise, columnwise):
        stochastic = self.facts.stochastic_gradient
        cast = self._cast(gradient, self.facts.gradient, rowwise, columnwise, stochastic)
        return gradient, *cast

    def input_gradient(self, operand):
        gradient, rowwise, _ = operand
        product = ops.scaled_by_weight(rowwise, self.weight, True, gradient.dtype)
        return _unpadded(product, gradient)

    def weight_gradient(self, operand, input):
        """`input`: the bytes that forward() kept."""
        _, _, columnwise = operand
        return ops.scaled_product(
            *(columnwise, self.facts.gradient, 1, True),
            *(input, self.facts.input, 1, True),
            *(None, self.facts.weight_gradient.number, False, self.weight.dtype),
        )

    def _cast(self, value, format: str, rowwise: bool, columnwise: bool, stochastic: bool):
        """The tensors of each usage: data, scales, and the amax where a scale spans the tensor;
        none of a usage that nobody asks for.
        """
        if not (rowwise or columnwise):
            return [], []
        rows = value.flatten(0, -2)
        rows = F.pad(rows, (0, 0, 0, -len(rows) % self.row_multiple)).contiguous()
        cast = ops.cast_stochastic if stochastic else ops.cast
        made = cast(rows, format, rowwise, columnwise)
        amax = [made.pop()] if registry.format(format).tensor_amax else []
        return made[:2] + amax if rowwise else [], made[-2:] + amax if columnwise else []


def _unpadded(product: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The rows of a product that are no padding, in the shape of the tensor that they belong to."""
    rows = math.prod(like.shape[:-1])
    return product[:rows].view(*like.shape[:-1], product.shape[-1])
