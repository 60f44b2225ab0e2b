"""F.linear on quantized weights: decoded rowwise forwards, columnwise backwards."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import narrowcast as nc
from gradients import saved_by
from internals import bytes_of
from models import DEVICES, GATHERS, STORAGES, same
from weights import quantized

TESTED_FORMATS = GATHERS


def make(format, device="cpu", bias=True, dtype=torch.float32):
    torch.manual_seed(0)
    return nc.convert(nn.Linear(96, 64, bias=bias, device=device, dtype=dtype), format)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [(5, 96), (2, 3, 96), (96,), (0, 96)], ids=str)
@pytest.mark.parametrize("name", STORAGES)
def test_forward_and_backward(name, device, dtype, shape):
    """Equal to plain products with the decoded weight of each usage."""
    layer = make(name, device).to(dtype)
    x = torch.randn(shape, device=device, dtype=dtype, requires_grad=True)
    rowwise = quantized(layer.weight).dequantize(dtype).requires_grad_()
    bias = layer.bias.detach().requires_grad_()
    out, expected = layer(x), F.linear(x, rowwise, bias)
    assert type(out) is torch.Tensor
    assert same(out, expected)
    gradient = torch.randn(out.shape, device=device, dtype=dtype)
    got = torch.autograd.grad(out, (x, layer.weight, layer.bias), gradient)
    plain = torch.autograd.grad(expected, (rowwise, bias), gradient)
    columnwise = quantized(layer.weight).dequantize(dtype, usage="columnwise")
    assert same(got[0], gradient @ columnwise)
    torch.testing.assert_close(got[1], plain[0])
    torch.testing.assert_close(got[2], plain[1])
    assert got[1].shape == layer.weight.shape
    assert got[1].dtype == layer.weight.dtype


def test_usages_are_those_of_their_pass(format):
    """The forward reads no columnwise byte, the backward no rowwise one; where columnwise is a
    rearrangement, neither reads columnwise.
    """
    layer, x = make(format, bias=False), torch.randn(4, 96, requires_grad=True)
    expected = layer(x)
    (gradient,) = torch.autograd.grad(expected.sum(), x)
    bytes = bytes_of(layer.weight)
    bytes.buffer(2).fill_(0x11)
    out = layer(x)
    assert same(out, expected)
    if nc.format(format).columnwise_derived:  # both usages have one value: rowwise serves both
        assert same(torch.autograd.grad(out.sum(), x)[0], gradient)
        return
    bytes.buffer(2).copy_(nc.quantize(layer.weight.value, format).columnwise_data)
    bytes.buffer(0).fill_(0x11)
    assert same(torch.autograd.grad(out.sum(), x)[0], gradient)


def test_the_input_is_saved_and_no_decoded_copy(format):
    """The weight itself is kept past hooks."""
    layer, x = make(format, bias=False), torch.randn(4, 96)
    saved = saved_by(lambda: layer(x))
    assert [type(one) for one in saved] == [torch.Tensor] and same(saved[0], x)


@pytest.mark.parametrize("matmul", ["dequantized", "scaled"])
def test_no_second_derivative(matmul):
    """A gradient penalty would go unnoticed."""
    layer = nc.convert(nn.Sequential(nn.Linear(64, 64)), "mxfp8_e4m3", matmul=matmul)[0]
    x = torch.randn(4, 64, requires_grad=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.functional.jvp(layer, torch.randn(4, 64), torch.randn(4, 64))


def test_frozen_weights_and_inputs(format):
    layer, x = make(format), torch.randn(4, 96)
    layer(x).sum().backward()
    assert layer.weight.grad is not None
    layer.weight.requires_grad_(False)
    layer.zero_grad()
    x.requires_grad_()
    layer(x).sum().backward()
    assert layer.weight.grad is None
    assert x.grad is not None
    with torch.no_grad():
        assert not layer(x).requires_grad


def test_gradients_accumulate(format):
    layer, x = make(format), torch.randn(4, 96)
    layer(x).sum().backward()
    once = layer.weight.grad.clone()
    layer(x).sum().backward()
    assert type(layer.weight.grad) is torch.Tensor
    assert torch.equal(layer.weight.grad, 2 * once)


@pytest.mark.parametrize("device", DEVICES)
def test_autocast(format, device):
    layer, x = make(format, device), torch.randn(4, 96, device=device, requires_grad=True)
    with torch.autocast(device, dtype=torch.bfloat16):
        out = layer(x)
    assert out.dtype == torch.bfloat16
    bias = layer.bias.bfloat16()
    assert same(
        out, F.linear(x.bfloat16(), quantized(layer.weight).dequantize(torch.bfloat16), bias)
    )
    out.float().sum().backward()
    assert layer.weight.grad.dtype == torch.float32


def test_quantized_operands_elsewhere(format):
    """As input or bias, or under another rank, a QuantizedTensor is just a number of values."""
    q, plain = nc.quantize(torch.randn(64, 96), format), torch.randn(32, 96)
    assert same(F.linear(q, plain), F.linear(q.dequantize(), plain))
    assert same(F.linear(plain, q, torch.ones(64)), F.linear(plain, q.dequantize(), torch.ones(64)))
    double = F.linear(plain.double(), q.double())
    assert double.dtype == torch.float64


def test_wrong_width(format):
    with pytest.raises(RuntimeError, match="4x95 and 96x64"):
        make(format)(torch.ones(4, 95))


def test_missing_usage(format):
    value, x = torch.randn(64, 96), torch.randn(4, 96, requires_grad=True)
    rowwise = F.linear(x, nc.quantize(value, format, columnwise=False))
    columnwise = nc.quantize(value, format, rowwise=False)
    if nc.format(format).columnwise_derived:  # either usage has the values of both
        assert same(F.linear(x, columnwise), rowwise)
        rowwise.sum().backward()
        return
    with pytest.raises(ValueError, match="no columnwise bytes"):
        rowwise.sum().backward()
    with pytest.raises(ValueError, match="no rowwise bytes"):
        F.linear(x, columnwise)


def test_on_meta(format):
    """Shapes alone, as of a plain layer."""
    layer = make(format, "meta")
    out = layer(torch.ones(5, 96, device="meta", requires_grad=True))
    assert (out.shape, out.device.type) == ((5, 64), "meta")
    out.sum().backward()
    assert layer.weight.grad.shape == (64, 96)
