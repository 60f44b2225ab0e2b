"""An infinity or a NaN in an input or a gradient: the product is not finite, in every format."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import narrowcast as nc
import scaled
from models import same

TESTED_FORMATS = scaled.SCALED
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
    amax = tensors[4] if facts.tensor_amax else None
    for number, usage in enumerate(("rowwise", "columnwise")):
        stored = *tensors[2 * number : 2 * number + 2], amax, None
        got = ops.dequantize(*stored, name, number, torch.float32, []).cpu()
        finite = got.isfinite()
        assert not finite[BAD]
        if not facts.tensor_amax:
            assert (~finite).sum() <= math.prod(getattr(facts, usage).block)
            assert same(got[finite], weight.dequantize(usage=usage)[finite])


def test_a_grad_scaler(format, device):
    """It sees a gradient that overflows float16, as with plain weights: the step is skipped."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(96, 96), nn.GELU(), nn.Linear(96, 64)).to(device)
    model = nc.convert(model, format, matmul="scaled")
    optimizer, scaler = nc.FusedAdam(model.parameters()), torch.amp.GradScaler(device, 2.0**24)
    before = [weight.master.clone() for weight in (model[0].weight, model[2].weight)]
    with torch.autocast(device, dtype=torch.float16):
        out = model(torch.randn(8, 96, device=device))
    scaler.scale(F.mse_loss(out.float(), torch.ones_like(out).float())).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2.0**23
    assert all(map(same, before, (model[0].weight.master, model[2].weight.master)))
