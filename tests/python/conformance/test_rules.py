"""The other rules of nc.optim against the reference, bit for bit: values, state, and the bytes."""

import numpy as np
import pytest
import torch
from torch import nn

import narrowcast as nc
import reference
import values
from conformance import DEVICES, FORMATS, assert_updated
from weights import value_of

LION = nc.optim.Lion, reference.lion, "exp_avg"
SGD = nc.optim.SGD, reference.sgd, "momentum_buffer"
RULES = {
    "lion": (*LION, {"lr": 1e-3, "weight_decay": 0.1}),
    "sgd": (*SGD, {"lr": 0.1}),
    "momentum": (*SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "weight_decay": 0.01}),
    "nesterov": (
        *SGD,
        {
            "lr": 0.1,
            "momentum": 0.9,
            "nesterov": True,
            "weight_decay": 0.01,
            "decoupled_weight_decay": True,
        },
    ),
}
SHAPES = [(128, 96), (36, 52)]  # the second divides blocks


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", [None, *FORMATS])
@pytest.mark.parametrize("kind", RULES)
def test_steps(kind, name, device):
    """Three steps. Moments of every other format are bfloat16, and so is one of the gradients."""
    make, rule, key, options = RULES[kind]
    rng = np.random.default_rng(0)
    layers = nn.ModuleList(nn.Linear(k, m, bias=False) for m, k in SHAPES).to(device)
    if name is not None:
        nc.convert(layers, name)
    bf16_state = len(name or "") % 2 == 1
    dtype = torch.bfloat16 if bf16_state else torch.float32
    optimizer = make(layers.parameters(), state_dtype=dtype, **options)
    truth = []
    for layer in layers:
        p = values.random(layer.weight.shape, rng) * 0.02
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(p))
        truth.append((p.astype(np.float32), np.zeros(p.shape, np.float32)))
    for t in (1, 2, 3):
        for i, layer in enumerate(layers):
            gradient = torch.from_numpy(values.random(layer.weight.shape, rng) * 0.01)
            gradient[0, 0] = 0  # whose sign is none
            if t == 2:
                gradient = gradient.bfloat16()
            layer.weight.grad = None
            layer.weight.grad_dtype = None
            layer.weight.grad = gradient.to(device)
            given = gradient.float().numpy()
            truth[i] = rule(*truth[i], given, t=t, bf16_state=bf16_state, **options)
        optimizer.step()
        for layer, (p, m) in zip(layers, truth, strict=True):
            state = optimizer.state[layer.weight][key]
            for ours, theirs in ((value_of(layer.weight), p), (state, m)):
                assert reference.same_bits(ours.float().cpu().numpy(), theirs), t
            if name is not None:
                assert_updated(layer.weight, name, p, t)
