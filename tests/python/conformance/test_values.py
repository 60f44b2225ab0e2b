"""AdamW on bfloat16 values against the reference, bit for bit: values, residuals and bytes."""

import numpy as np
import pytest
import torch
from torch import nn

import narrowcast as nc
import reference
import values
from conformance import COLUMNS, DEVICES, FORMATS, assert_updated
from weights import value_of

STATES = [torch.float32, torch.bfloat16, *nc.state_formats()]
# The second divides blocks, the third has an odd number of columns.
SHAPES = [(128, 256), (68, COLUMNS), (36, 52)]
HYPER = {"lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}


def moments_of(state):
    """As float32, from numbers or from codes."""
    found = []
    for key, nonnegative in (("exp_avg", False), ("exp_avg_sq", True)):
        if key in state:
            found.append(state[key].float().cpu().numpy())
            continue
        facts = nc.registry.state_format(nc.state_formats()[0])
        codes, scales = (state[f"{key}_{facts.name}{end}"] for end in ("", "_scale"))
        found.append(facts.decode(codes, scales, nonnegative).cpu().numpy())
    return found


def layers_on(device, name, dtype=torch.bfloat16):
    layers = nn.ModuleList(nn.Linear(k, m, bias=False) for m, k in SHAPES).to(device, dtype)
    return nc.convert(layers, name, value_dtype=torch.bfloat16)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("state", STATES, ids=str)
@pytest.mark.parametrize("bits", [8, 0])
@pytest.mark.parametrize("name", FORMATS)
def test_steps(name, bits, state, device):
    """Four steps; one has a gradient in float32, one a gradient that is not finite. The reference
    takes each from the moments that the step before has left, which test_state_formats.py compares.
    """
    rng = np.random.default_rng(0)
    layers = layers_on(device, name)
    options = {"state_dtype": state, "residual_bits": bits, "seed": 5}
    optimizer = nc.optim.AdamW(layers.parameters(), **options, **HYPER)
    masters = []
    for layer in layers:
        value = reference.round_to_bf16(values.random(layer.weight.shape, rng) * 0.02)
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(value))
        masters.append(value)
    moments = [[np.zeros(p.shape, np.float32)] * 2 for p in masters]
    for t in (1, 2, 3, 4):
        for place, layer in enumerate(layers):
            gradient = values.random(layer.weight.shape, rng) * np.float32(0.01)
            if t == 3:
                gradient[1, 0], gradient[2, -1] = np.inf, np.nan
            gradient = torch.from_numpy(gradient)
            gradient = gradient if t == 2 else gradient.bfloat16()
            layer.weight.grad = None
            layer.weight.grad_dtype = None
            layer.weight.grad = gradient.to(device)
            given = gradient.float().numpy()
            start = masters[place], *moments[place]
            masters[place], *_ = reference.adam(*start, given, t=t, **HYPER)
        optimizer.step()
        for place, layer in enumerate(layers):
            state_of, where = optimizer.state[layer.weight], f"{SHAPES[place]}, step {t}"
            if bits:
                value, residual = reference.split(masters[place])
                assert np.array_equal(state_of["residual"].cpu().numpy(), residual), where
                masters[place] = reference.join(value, residual)
            else:
                value = masters[place] = reference.draw(masters[place], 5 + place, t)
                assert "residual" not in state_of
            assert layer.weight.value.dtype == torch.bfloat16
            assert reference.same_bits(value_of(layer.weight).float().cpu().numpy(), value), where
            moments[place] = moments_of(state_of)
            assert_updated(layer.weight, name, value, where)


def patterns():
    """Bit patterns: around all bf16 values, and at random."""
    highs = np.arange(1 << 16, dtype=np.uint32) << 16
    lows = np.array([0, 1, 0x7F, 0x80, 0x81, 0x7F7F, 0x7F80, 0x7FFF, 0x8000, 0x8080, 0xFFFF])
    drawn = np.random.default_rng(1).integers(0, 2**32, 1 << 20, np.uint32)
    return np.concatenate([np.add.outer(highs, lows.astype(np.uint32)).ravel(), drawn])


def test_the_encoding():
    """What it is for: the sum is exact, and the value the nearest bfloat16."""
    x = patterns().view(np.float32)
    value, residual = reference.split(x)
    joined = reference.join(value, residual)
    assert reference.same_bits(*(reference.split(one)[0] for one in (joined, x)))
    assert np.array_equal(reference.split(joined)[1], residual)
    finite = np.isfinite(value)
    scale = np.maximum(np.abs(x[finite].astype(np.float64)), 2.0**-126)
    error = np.abs(x[finite].astype(np.float64) - joined[finite])
    assert np.all(error <= scale * 2.0**-16)  # half of the last of 16 bits
    assert np.array_equal(np.isnan(x), np.isnan(value))
    assert np.all(residual[~np.isfinite(x)] == 0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("bits", [8, 0])
def test_every_pattern(bits, device):
    """Masters of all kinds of bits: a step that changes nothing but by the encoding."""
    u = patterns().reshape(-1, 64)
    x = u.view(np.float32)
    value, residual = reference.split(x)
    layer = nn.Linear(64, len(u), bias=False, device=device, dtype=torch.bfloat16)
    nc.convert(layer, next(iter(FORMATS)), value_dtype=torch.bfloat16)
    options = {"lr": 1.0, "betas": (0.0, 0.0), "eps": 0.5, "weight_decay": 0.0}
    optimizer = nc.optim.AdamW(layer.parameters(), residual_bits=bits, **options)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(value))
    gradient = np.random.default_rng(2).uniform(-1, 1, x.shape) * np.abs(np.nan_to_num(value))
    gradient = torch.from_numpy(np.minimum(gradient, 1e30).astype(np.float32)).bfloat16()
    layer.weight.grad = gradient.to(device)
    optimizer.make_state()
    if bits:
        optimizer.state[layer.weight]["residual"].copy_(torch.from_numpy(residual))
    optimizer.step()
    start = reference.join(value, residual) if bits else value
    zeros = np.zeros(x.shape, np.float32)
    master, *_ = reference.adam(start, zeros, zeros, gradient.float().numpy(), t=1, **options)
    if bits:
        value, residual = reference.split(master)
        got = optimizer.state[layer.weight]["residual"].cpu().numpy()
        assert np.array_equal(got, residual)
    else:
        value = reference.draw(master, 0, 1)
    assert reference.same_bits(value_of(layer.weight).float().cpu().numpy(), value)


@pytest.mark.parametrize("device", DEVICES)
def test_a_residual_of_another_value_does_no_harm(device):
    """Whatever the bits, what is finite stays finite and keeps its sign."""
    value = (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32).reshape(-1, 64)
    layer = nn.Linear(64, len(value), bias=False, device=device, dtype=torch.bfloat16)
    nc.convert(layer, next(iter(FORMATS)), value_dtype=torch.bfloat16)
    optimizer = nc.optim.AdamW(layer.parameters(), lr=0.0, weight_decay=0.0)
    for residual in (-128, -1, 1, 127):
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(value))
        layer.weight.grad = torch.ones_like(layer.weight.value)
        optimizer.make_state()
        optimizer.state[layer.weight]["residual"].fill_(residual)
        optimizer.step()
        got = value_of(layer.weight).float().cpu().numpy()
        joined = reference.join(value, np.full(value.shape, residual, np.int8))
        finite = np.isfinite(value)
        assert reference.same_bits(got[finite], reference.split(joined)[0][finite])
        assert np.all(np.isfinite(got[finite]))
        assert np.all(np.signbit(got[finite]) == np.signbit(value[finite]))
