"""nc.optim.Adam against the reference, bit for bit: masters, moments and the bytes made of them."""

import numpy as np
import pytest
import torch
from torch import nn

import narrowcast as nc
import reference
import values
from conformance import DEVICES, FORMATS, assert_updated
from models import GATHERS
from weights import value_of

ON_DEVICES = pytest.mark.parametrize("device", DEVICES)
# None: a plain parameter, which is its own master.
WEIGHTS = pytest.mark.parametrize("name", [None, *FORMATS])
HYPER = {
    "lr": 1e-3,
    "betas": (0.9, 0.95),
    "eps": 1e-8,
    "weight_decay": 0.1,
    "decoupled_weight_decay": True,
}


def weights(name, shapes, device, dtype=torch.float32, seed=0):
    """Parameters of those shapes, in a format or plain, and their fp32 values."""
    rng = np.random.default_rng(seed)
    layers = nn.ModuleList(nn.Linear(k, m, bias=False) for m, k in shapes)
    with torch.no_grad():
        for layer in layers:
            layer.weight.copy_(torch.from_numpy(values.random(layer.weight.shape, rng) * 0.02))
    layers.to(device=device, dtype=dtype)
    plain = [layer.weight.detach().float().cpu().numpy().copy() for layer in layers]
    if name is not None:
        nc.convert(layers, name)
    return list(layers.parameters()), plain


def gradients(shapes, dtype, step):
    rng = np.random.default_rng(100 + step)
    return [torch.from_numpy(values.random(shape, rng) * 0.01).to(dtype) for shape in shapes]


def compare(name, parameters, optimizer, truth):
    """Every parameter's state, and the bytes of its new value, against (p, m, v) of the truth."""
    for i, (parameter, (p, m, v)) in enumerate(zip(parameters, truth, strict=True)):
        state = optimizer.state[parameter]
        value = state.get("master", value_of(parameter))
        for ours, theirs in ((value, p), (state["exp_avg"], m), (state["exp_avg_sq"], v)):
            assert reference.same_bits(ours.float().cpu().numpy(), theirs), f"parameter {i}"
        if name is not None:
            assert_updated(parameter, name, p, f"parameter {i}")


def train(
    name, shapes, device, *, steps=3, dtype=torch.float32, state_dtype=torch.float32, **hyper
):
    """Some steps of both, compared after each."""
    hyper = HYPER | hyper
    parameters, plain = weights(name, shapes, device)
    optimizer = nc.optim.Adam(parameters, state_dtype=state_dtype, **hyper)
    truth = [(p, np.zeros_like(p), np.zeros_like(p)) for p in plain]
    for t in range(1, steps + 1):
        grads = gradients(shapes, dtype, t)
        for parameter, grad in zip(parameters, grads, strict=True):
            # torch wants gradients of the parameter's dtype; the optimizer takes narrower ones.
            parameter.grad = None
            parameter.grad_dtype = None
            parameter.grad = grad.to(device)
        optimizer.step()
        bf16_state = state_dtype == torch.bfloat16
        truth = [
            reference.adam(*state, grad.float().numpy(), t=t, bf16_state=bf16_state, **hyper)
            for state, grad in zip(truth, grads, strict=True)
        ]
        compare(name, parameters, optimizer, truth)


@WEIGHTS
@ON_DEVICES
@pytest.mark.parametrize(
    ("decoupled", "state_dtype", "weight_decay"),
    [
        (True, torch.float32, 0.1),
        (True, torch.bfloat16, 0.0),
        (False, torch.float32, 0.0),
        (False, torch.bfloat16, 0.1),
    ],
)
def test_steps(name, device, decoupled, state_dtype, weight_decay):
    options = {"decoupled_weight_decay": decoupled, "weight_decay": weight_decay}
    options["state_dtype"] = state_dtype
    train(name, [(128, 96), (36, 52), (160, 288)], device, **options)


@WEIGHTS
@ON_DEVICES
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_narrow_gradients(name, device, dtype):
    train(name, [(128, 96), (64, 64)], device, dtype=dtype)


@ON_DEVICES
@pytest.mark.parametrize(
    ("name", "count"),
    [*((name, 25) for name in (None, *FORMATS)), *((name, 400) for name in (None, GATHERS[0]))],
)
def test_many_parameters(name, device, count):
    shapes = [(4 * (1 + i % 9), 4 * (1 + i % 7)) for i in range(count)]
    train(name, shapes, device, steps=2)


@ON_DEVICES
@pytest.mark.parametrize("size", [1, 555, 7777, 65535, 65536, 65537, 2048 * 32 + 1])
def test_plain_sizes(device, size):
    train(None, [(1, size)], device)


@WEIGHTS
@ON_DEVICES
def test_zero_over_zero_is_nan(name, device):
    parameters, _ = weights(name, [(32, 32)], device)
    optimizer = nc.optim.Adam(parameters, eps=0.0)
    parameters[0].grad = torch.zeros(32, 32, device=device)
    optimizer.step()
    state = optimizer.state[parameters[0]]
    assert state.get("master", value_of(parameters[0])).isnan().all()


@WEIGHTS
@ON_DEVICES
@pytest.mark.parametrize("scale", [1.0, 65536.0, 3.0])
def test_scaled_gradients_and_skipped_steps(name, device, scale):
    parameters, plain = weights(name, [(64, 96)], device)
    optimizer = nc.optim.Adam(parameters, **HYPER)
    truth = (plain[0], np.zeros_like(plain[0]), np.zeros_like(plain[0]))
    t = 0
    for step, skipped in enumerate([False, True, False]):
        grad = gradients([(64, 96)], torch.float32, step)[0] * scale
        parameters[0].grad = grad.to(device)
        optimizer.grad_scale = torch.tensor(scale, device=device)
        optimizer.found_inf = torch.tensor(float(skipped), device=device)
        optimizer.step()
        if not skipped:
            t += 1
            truth = reference.adam(*truth, grad.numpy(), t=t, grad_scale=scale, **HYPER)
        assert float(optimizer.state[parameters[0]]["step"]) == t
        compare(name, parameters, optimizer, [truth])


@WEIGHTS
@ON_DEVICES
def test_special_gradients_spread_as_ieee_says(name, device):
    parameters, plain = weights(name, [(64, 96)], device)
    optimizer = nc.optim.Adam(parameters, **HYPER)
    grad = values.nans_beside_infinities((64, 96), np.random.default_rng(1))
    parameters[0].grad = torch.from_numpy(grad).to(device)
    optimizer.step()
    zero = np.zeros_like(plain[0])
    compare(name, parameters, optimizer, [reference.adam(plain[0], zero, zero, grad, t=1, **HYPER)])


@ON_DEVICES
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_plain_narrow_parameters_receive_the_rounded_master(device, dtype):
    parameters, plain = weights(None, [(64, 96)], device, dtype)
    optimizer = nc.optim.Adam(parameters, **HYPER)
    truth = (plain[0], np.zeros_like(plain[0]), np.zeros_like(plain[0]))
    for t in (1, 2, 3):
        grad = gradients([(64, 96)], dtype, t)[0]
        parameters[0].grad = grad.to(device)
        optimizer.step()
        truth = reference.adam(*truth, grad.float().numpy(), t=t, **HYPER)
        compare(None, parameters, optimizer, [truth])
        assert torch.equal(parameters[0].detach().cpu(), torch.from_numpy(truth[0]).to(dtype))
