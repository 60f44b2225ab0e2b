"""Tracers that record what operators do: a graph holds an operator for each decoding, so that it
computes what the function does, of other inputs too; or there is an error.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import narrowcast as nc
from models import same

TESTED_FORMATS = ["fp8_e4m3", "mxfp8_e4m3"]  # columnwise derived, and of its own

FUNCTIONS = {
    "linear": lambda x, w: F.linear(x, w),
    "linear of a slice": lambda x, w: F.linear(x, w[:32]),
    "mm": lambda x, w: torch.mm(x, w.t()),
    "dequantize": lambda x, w: x @ w.dequantize().t(),
    "dequantize columnwise": lambda x, w: x @ w.dequantize(usage="columnwise").t(),
    "arithmetic": lambda x, w: x @ (w * 2).t(),
    "embedding": lambda x, w: F.embedding(torch.arange(4), w) * x[0],
    "jvp": lambda x, w: torch.func.jvp(lambda x: F.linear(x, w), (x,), (x.cos(),))[1],
    "vmap": lambda x, w: torch.func.vmap(lambda x: F.linear(x, w))(x),
    "grad": lambda x, w: torch.func.grad(lambda x: F.linear(x, w).square().sum())(x),
    "functionalize": lambda x, w: torch.func.functionalize(lambda x: F.linear(x, w))(x),
}
TRACERS = {
    "make_fx": lambda function, x: make_fx(function)(x),
    "jit": lambda function, x: torch.jit.trace(function, x, check_trace=False),
}


def weight_of(format):
    torch.manual_seed(0)
    return nc.quantize(torch.randn(64, 96), format)


def trained(format):
    """A weight in training. torch.jit.trace takes no constants that require gradients."""
    torch.manual_seed(0)
    return nc.convert(nn.Linear(96, 64), format).weight.requires_grad_(False)


@pytest.mark.parametrize("make", [weight_of, trained])
@pytest.mark.parametrize("tracer", TRACERS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_graph_computes_the_same(format, tracer, function, make):
    if make is trained and "dequantize" in function:
        pytest.skip("a weight in training has a value instead")
    weight, (x, other) = make(format), torch.randn(2, 8, 96)
    run = FUNCTIONS[function]
    if tracer == "jit" and function in ("jvp", "vmap", "grad", "functionalize"):
        pytest.skip("torch.jit.trace takes no transforms")
    graph = TRACERS[tracer](lambda x: run(x, weight), x)
    torch.testing.assert_close(graph(other), run(other, weight), rtol=0, atol=0)


def test_linearize(format):
    weight, (x, tangent) = weight_of(format), torch.randn(2, 8, 96)
    out, derivative = torch.func.linearize(lambda x: F.linear(x, weight), x)
    assert same(out, F.linear(x, weight))
    torch.testing.assert_close(derivative(tangent), F.linear(tangent, weight))


@pytest.mark.parametrize("tracer", TRACERS)
def test_a_cast_is_refused(format, tracer):
    """What makes bytes is no operator, so a graph would lack it."""
    with pytest.raises(Exception, match="its graph would not know"):
        TRACERS[tracer](lambda x: nc.quantize(x, format).dequantize(), torch.randn(64, 96))


def test_a_write_is_refused(format):
    weight = weight_of(format)
    with pytest.raises(NotImplementedError, match="its graph would not know"):
        make_fx(lambda x: weight.copy_(x))(torch.randn(64, 96))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x, w: F.linear(x, w.mul_(2)), "its graph would not know"),
        (lambda x, w: F.linear(x, w.clone()), "cannot write to it, nor copy it"),
    ],
    ids=["write", "copy"],
)
def test_a_cast_of_a_weight_in_training_is_refused(format, function, message):
    weight = trained(format)
    with pytest.raises(NotImplementedError, match=message):
        make_fx(lambda x: function(x, weight))(torch.randn(8, 96))
