"""Programs that a QuantizedTensor cannot be a part of: each error names the way out."""

import io
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import narrowcast as nc
from weights import quantized

TESTED_FORMATS = ["fp8_e4m3", "mxfp8_e4m3"]  # transposed exactly, and not


class Model(nn.Module):
    """`product`: of an input and the weight of a layer."""

    def __init__(self, product, format, **options):
        super().__init__()
        self.layer = nc.convert(nn.Linear(64, 64), format, **options)
        self.product = product

    def forward(self, x):
        return self.product(x, self.layer)


PRODUCTS = {
    "layer": lambda x, layer: layer(x),
    "linear of a slice": lambda x, layer: F.linear(x, layer.weight[:32]),
    "mm": lambda x, layer: x @ layer.weight.t(),
    "dequantize": lambda x, layer: x @ quantized(layer.weight).dequantize().t(),
}
NO_OPERATOR = r"64x64 matrix in .*: torch\.onnx\.export has no operator .* nc\.to_plain\(model\)"
NO_MEMORY = r"has no memory of values .* nc\.to_plain\(model\) first"


def refused(model, dynamo, message=NO_OPERATOR):
    """What the exporter raises, or what that came from, is narrowcast's error. Afterwards torch's
    own traces are as before.
    """
    x = torch.randn(3, 64)
    with pytest.raises(Exception) as caught:
        torch.onnx.export(model, (x,), None if dynamo else io.BytesIO(), dynamo=dynamo)
    error = caught.value
    while error.__cause__ is not None:
        error = error.__cause__
    assert re.search(message, str(error)), error
    torch.testing.assert_close(torch.jit.trace(model, x)(x), model(x), rtol=0, atol=0)


@pytest.mark.parametrize("product", PRODUCTS)
def test_onnx_of_torchscript(format, product):
    """Its trace of a product without F.linear holds the weight itself, whose values it asks for."""
    message = NO_MEMORY if product == "mm" else NO_OPERATOR
    refused(Model(PRODUCTS[product], format), dynamo=False, message=message)


@pytest.mark.parametrize("product", PRODUCTS)
def test_onnx_of_torch_export(format, product):
    pytest.importorskip("onnxscript")
    refused(Model(PRODUCTS[product], format, trainable=False), dynamo=True)


@pytest.mark.parametrize("dynamo", [False, True])
def test_onnx_of_a_scaled_layer(dynamo):
    if dynamo:
        pytest.importorskip("onnxscript")
    refused(Model(PRODUCTS["layer"], "fp8_e4m3", matmul="scaled"), dynamo)


def test_saved_programs(format):
    """They want the memory of a parameter."""
    layer = nc.convert(nn.Linear(64, 64), format)
    for program in (torch.jit.script(layer), torch.jit.trace(layer, torch.randn(3, 64))):
        with pytest.raises(RuntimeError, match=NO_MEMORY):
            torch.jit.save(program, io.BytesIO())


def test_frozen_programs(format):
    """They compute the same; one that torch optimizes wants transposed weights in memory."""
    for is_trained in (True, False):
        layer = nc.convert(nn.Linear(64, 64), format, trainable=is_trained).eval()
        x = torch.randn(3, 64)
        for program in (torch.jit.script(layer), torch.jit.trace(layer, x)):
            assert torch.equal(torch.jit.freeze(program)(x), layer(x))
    if nc.format(format).rules.transpose.kind == "exact":
        return
    with pytest.raises(NotImplementedError, match=r"transposed view has no bytes.*nc\.to_plain"):
        torch.jit.optimize_for_inference(torch.jit.script(layer))
