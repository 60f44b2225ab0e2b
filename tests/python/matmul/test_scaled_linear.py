"""F.linear with scaled products: those of cast operands, each of its three against float64; of an
infinity or a NaN the product is not finite.
"""

import copy
import math
import pickle
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import narrowcast as nc
import scaled
from internals import config_of
from models import DEVICES, same
from narrowcast import _C
from weights import quantized

TESTED_FORMATS = scaled.SCALED


STOCHASTIC = [name for name in scaled.SCALED if nc.format(name).matmul.stochastic_gradient]


NEAREST = [name for name in scaled.SCALED if name not in STOCHASTIC]


# Of a row, beside the accumulation: that of rounding the result to its dtype.
ROUNDING = {torch.float32: 0, torch.bfloat16: 2**-8, torch.float16: 2**-10}


# Matrix units that accumulate fast keep fewer bits (docs/decisions/0010-fast-accumulation.md).
FAST_ACCUMULATION = 2**-8


SHAPES = [(5, 96), (2, 3, 96), (96,), (0, 96), (1, 96), (64, 96)]


def error_bound(device, dtype, forward=False):
    fast = forward and device == "cuda"
    return (FAST_ACCUMULATION if fast else scaled.ACCUMULATION) + ROUNDING[dtype]


def run(layer, x, gradient=None):
    """Output without the bias, and the gradients of input, weight and bias."""
    out = layer(x)
    gradient = torch.randn_like(out) if gradient is None else gradient
    got = torch.autograd.grad(out, (x, layer.weight, layer.bias), gradient)
    return out, gradient, *got


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [*ROUNDING], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products(format, device, dtype, shape):
    layer = scaled.layer(format, device, dtype)
    with torch.no_grad():
        layer.bias.zero_()
    x = torch.randn(shape, device=device, dtype=dtype, requires_grad=True)
    out, gradient, of_input, of_weight, of_bias = run(layer, x)
    assert out.dtype == of_input.dtype == of_weight.dtype == dtype
    assert out.shape == (*shape[:-1], 64)
    assert of_input.shape == shape
    assert of_weight.shape == (64, 96)
    assert type(out) is torch.Tensor
    expected = scaled.forward(x, layer.weight)
    assert scaled.row_error(out, expected) <= error_bound(device, dtype, forward=True)
    torch.testing.assert_close(of_bias, gradient.reshape(-1, 64).sum(0))
    if format in STOCHASTIC:
        return
    expected = scaled.input_gradient(gradient, layer.weight)
    assert scaled.row_error(of_input, expected) <= error_bound(device, dtype)
    expected = scaled.weight_gradient(gradient, x, layer.weight)
    assert scaled.row_error(of_weight, expected) <= error_bound(device, dtype)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rows", [1, 16, 20, 100, 512])
@pytest.mark.parametrize("inner", [512, 528, 640])
@pytest.mark.parametrize("outer", [512, 1024, 80])
def test_shapes_of_matrix_units(device, rows, inner, outer):
    """Whatever a unit takes or leaves, the product means the same."""
    if device == "cpu" and rows > 20 and inner != 528:
        pytest.skip("the CPU has no unit, and any shape is like another")
    for format in NEAREST:
        layer = scaled.layer(format, device, torch.bfloat16, inner, outer)
        with torch.no_grad():
            layer.bias.zero_()
        x = torch.randn(rows, inner, device=device, dtype=torch.bfloat16, requires_grad=True)
        out, gradient, of_input, of_weight, _ = run(layer, x)
        errors = (
            scaled.row_error(out, scaled.forward(x, layer.weight)),
            scaled.row_error(of_input, scaled.input_gradient(gradient, layer.weight)),
            scaled.row_error(of_weight, scaled.weight_gradient(gradient, x, layer.weight)),
        )
        bounds = [error_bound(device, torch.bfloat16, i == 0) for i in range(3)]
        assert all(error <= bound for error, bound in zip(errors, bounds, strict=True)), (
            format,
            errors,
        )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", STOCHASTIC)
def test_stochastic_gradients(name, device):
    """A cast of the gradient draws its seed from torch's generator of the CPU, on every machine."""
    layer = scaled.layer(name, device)
    x = torch.randn(32, 96, device=device, requires_grad=True)
    gradient = torch.randn(32, 64, device=device)
    torch.manual_seed(7)
    seed = torch.empty((), dtype=torch.int64).random_(-(2**63), None).item() % 2**64
    torch.manual_seed(7)
    _, _, of_input, of_weight, _ = run(layer, x, gradient)
    matmul = layer.weight.format.matmul
    cast = nc.quantize(gradient, matmul.gradient, rounding="stochastic", seed=seed)
    expected = cast.dequantize().double() @ scaled.weight_values(layer.weight, "columnwise")
    assert scaled.row_error(of_input, expected) <= scaled.ACCUMULATION
    columnwise = cast.dequantize(usage="columnwise").double()
    expected = columnwise.t() @ scaled.values(x, matmul.input, "columnwise")
    assert scaled.row_error(of_weight, expected) <= scaled.ACCUMULATION
    assert not same(run(layer, x, gradient)[2], of_input)


def test_a_bias(format, device):
    layer = scaled.layer(format, device)
    x = torch.randn(5, 96, device=device)
    with_bias = layer(x)
    plain = F.linear(x, layer.weight)
    assert same(with_bias, plain + layer.bias)


@pytest.mark.parametrize("gradients", [True, False])
def test_a_bias_elsewhere(format, device, gradients):
    """As with plain weights, an error."""
    layer = scaled.layer(format, device)
    bias = torch.zeros(64, device="meta")
    with torch.set_grad_enabled(gradients), pytest.raises(TypeError, match="bias is Float on meta"):
        F.linear(torch.randn(5, 96, device=device), layer.weight, bias)


def test_autocast(format, device):
    """As F.linear: the product is in autocast's dtype, the gradients in those of their tensors."""
    layer = scaled.layer(format, device)
    x = torch.randn(4, 96, device=device, requires_grad=True)
    with torch.autocast(device, dtype=torch.bfloat16):
        out = layer(x)
    assert out.dtype == torch.bfloat16
    of_input, of_weight = torch.autograd.grad(out.sum(), (x, layer.weight))
    assert of_input.dtype == of_weight.dtype == torch.float32


def test_what_needs_no_gradient(format, device):
    layer = scaled.layer(format, device)
    x = torch.randn(8, 96, device=device)
    layer(x).sum().backward()  # the input needs none
    of_weight = layer.weight.grad
    layer.zero_grad()
    layer.weight.requires_grad_(False)
    x.requires_grad_()
    torch.manual_seed(1)
    layer(x).sum().backward()
    assert layer.weight.grad is None
    of_input = x.grad.clone()
    layer.weight.requires_grad_(True)
    x.grad = None
    torch.manual_seed(1)
    layer(x).sum().backward()
    assert same(x.grad, of_input)
    if format in NEAREST:
        assert same(layer.weight.grad, of_weight)
    with torch.no_grad():
        assert not layer(x).requires_grad
    with torch.inference_mode():
        token = layer(torch.randn(1, 1, 96, device=device))
    assert token.shape == (1, 1, 64)


def test_layers_that_share_a_weight(format):
    one, other = scaled.layer(format), nn.Linear(96, 64)
    other.weight = one.weight
    x = torch.randn(8, 96)
    torch.manual_seed(1)
    (one(x).sum() + other(x).sum()).backward()
    both = one.weight.grad.clone()
    one.zero_grad()
    torch.manual_seed(1)
    one(x).sum().backward()
    F.linear(x, one.weight).sum().backward()
    torch.testing.assert_close(one.weight.grad, both)


def test_the_option_stays_with_the_weight(format):
    x = torch.randn(8, 96)
    for kept in (copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer)), nn.Module.cpu):
        layer = scaled.layer(format)
        assert same(kept(layer)(x), scaled.layer(format)(x))
        assert config_of(kept(layer).weight).matmul == "scaled"


def test_refused():
    layer = nn.Linear(96, 64)
    with pytest.raises(ValueError, match='matmul is "dequantized" or "scaled", not \'exact\''):
        nc.convert(layer, TESTED_FORMATS[0], matmul="exact")
    without = next(name for name in nc.formats() if nc.format(name).matmul is None)
    with pytest.raises(ValueError, match=f"{without} names no formats for activations"):
        nc.convert(layer, without, matmul="scaled")
    assert type(layer.weight) is nn.Parameter
    layer = scaled.layer(TESTED_FORMATS[0])
    with pytest.raises(TypeError, match="the bias is"):
        F.linear(torch.randn(2, 96), layer.weight, torch.zeros(64, dtype=torch.float64))


def test_partners_that_are_others_now(monkeypatch):
    """A format's products were decided for the formats that it names, when it was built."""
    able = [name for name in nc.formats() if nc.format(name).matmul]
    units = [name for name in able if nc.format(name).matmul.forward.number]
    for name in units:
        partner = nc.format(name).matmul.input
        if partner == name:
            continue
        layer = nc.convert(torch.nn.Linear(128, 128), name, matmul="scaled", trainable=False)
        saved = pickle.dumps(layer.weight)
        monkeypatch.setitem(nc.registry.loaded._formats, partner, nc.format("int8_block32"))
        with pytest.raises(ValueError, match=f"{name} was built when .*: build it again"):
            nc.convert(torch.nn.Linear(128, 128), name, matmul="scaled")
        with pytest.raises(ValueError, match=f"'weight'.*{name} was built when .*: build it again"):
            pickle.loads(saved)
        nc.convert(torch.nn.Linear(128, 128), name)
        monkeypatch.delitem(nc.registry.loaded._formats, partner)
        with pytest.raises(ValueError, match=f"'weight': there is no format '{partner}'"):
            pickle.loads(saved)
        monkeypatch.undo()
    for name in able:
        nc.convert(torch.nn.Linear(128, 128), name, matmul="scaled")


VALUES = [math.inf, -math.inf, math.nan]


# What a cast of an activation can be to: delayed scaling has a history, and activations have none.
CAST_TO = [name for name in nc.formats() if not nc.format(name).is_delayed]


BAD = 3, 50  # row and column of the value


def with_bad(shape, value, device, dtype=torch.float32):
    x = torch.randn(shape, device=device, dtype=dtype)
    x[BAD] = value
    return x


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_an_input(format, device, dtype, value):
    layer = scaled.layer(format, device, dtype)
    out = layer(with_bad((40, 96), value, device, dtype))
    assert not out[BAD[0]].isfinite().any()
    out.backward(torch.ones_like(out))
    assert not layer.weight.grad[:, BAD[1]].isfinite().any()
    with torch.no_grad():
        assert not layer(with_bad((40, 96), value, device, dtype))[BAD[0]].isfinite().any()


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_gradient(format, device, dtype, value):
    layer = scaled.layer(format, device, dtype)
    x = torch.randn(40, 96, device=device, dtype=dtype, requires_grad=True)
    layer(x).backward(with_bad((40, 64), value, device, dtype))
    assert not x.grad[BAD[0]].isfinite().any()
    assert not layer.weight.grad[BAD[1]].isfinite().any()
    assert not layer.bias.grad[BAD[1]].isfinite()


def test_inputs_that_are_nan_alone(format, device):
    out = scaled.layer(format, device)(torch.full((40, 96), math.nan, device=device))
    assert not out.isfinite().any()


@pytest.mark.parametrize("name", CAST_TO)
@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("shape", [(40, 96), (256, 512), (128, 128)], ids=str)
def test_casts(name, device, shape, value):
    """Of activations, to any format: the value does not decode to a finite one, others of other
    blocks stay as they are, and every machine makes the same bytes.
    """
    x = with_bad(shape, value, "cpu")
    ops, facts, weight = torch.ops.narrowcast, nc.format(name), nc.quantize(x, name)
    tensors = ops.cast(x.to(device), name, True, True)
    assert all(map(same, tensors, ops.cast(x, name, True, True)))
    bytes = _C.Buffers(facts, *shape, tensors[:4], *(tensors[4:] or [None]), None)
    for usage in ("rowwise", "columnwise"):
        got = bytes.decode(usage, torch.float32).cpu()
        finite = got.isfinite()
        assert not finite[BAD]
        if not facts.tensor_amax:
            assert (~finite).sum() <= math.prod(getattr(facts, usage).block)
            assert same(got[finite], quantized(weight).dequantize(usage=usage)[finite])


def test_a_grad_scaler(format, device):
    """It sees a gradient that overflows float16, as with plain weights: the step is skipped."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(96, 96), nn.GELU(), nn.Linear(96, 64)).to(device)
    model = nc.convert(model, format, matmul="scaled")
    optimizer, scaler = nc.FusedAdam(model.parameters()), torch.amp.GradScaler(device, 2.0**24)
    before = [weight.value.clone() for weight in (model[0].weight, model[2].weight)]
    with torch.autocast(device, dtype=torch.float16):
        out = model(torch.randn(8, 96, device=device))
    scaler.scale(F.mse_loss(out.float(), torch.ones_like(out).float())).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2.0**23
    assert all(map(same, before, (model[0].weight.value, model[2].weight.value)))


def test_products_of_groups_of_rows_are_refused():
    bytes = nc.quantize(torch.randn(32, 64), "mxfp8_e4m3")._store.bytes
    operand = [bytes.buffer(0), bytes.buffer(1)], "mxfp8_e4m3", 0, False
    run = partial(torch.ops.narrowcast.scaled_mm, *operand, *operand, 0, False, torch.float32)
    assert run().shape == (32, 32)
    on_meta = [one.to("meta") for one in operand[0]], *operand[1:]
    assert run.func(*on_meta, *on_meta, *run.args[8:]).shape == (32, 32)
    with pytest.raises(NotImplementedError, match="groups of rows"):
        run(torch.tensor([16, 32], dtype=torch.int32))
