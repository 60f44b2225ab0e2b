"""torchao's Float8Linear, whose product with the transposed weight is hidden in a function of its
own, over weights in training: it casts their values to its own format, as of plain ones.
"""

import pytest
import torch
from torch import nn

import narrowcast as nc

pytest.importorskip("torchao", reason="torchao is not installed")

from torchao.float8 import Float8LinearConfig, convert_to_float8_training
from torchao.float8.float8_linear import Float8Linear


def layers():
    """Two of them. On a CPU torchao emulates its products."""
    plain = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(2)))
    return convert_to_float8_training(plain, config=Float8LinearConfig(emulate=True))


def trained(model, inputs):
    """What comes out, and the gradients of input and weights."""
    x = inputs.clone().requires_grad_()
    output = model(x)
    output.square().sum().backward()
    return [output, x.grad, *(layer.weight.grad for layer in model)]


def test_float8_linear(format):
    torch.manual_seed(0)
    model, plain = layers(), layers()
    nc.convert(model, format, filter=lambda name, module: isinstance(module, Float8Linear))
    with torch.no_grad():
        for mine, other in zip(model, plain, strict=True):
            other.weight.copy_(mine.weight.value)
    x = torch.randn(32, 64)
    for one, other in zip(trained(model, x), trained(plain, x), strict=True):
        assert torch.equal(one, other)
