"""AdamW with its moments in a state format, against the reference, bit for bit: values, codes,
scales, and the weights' bytes.
"""

import numpy as np
import pytest
import torch
from torch import nn

import narrowcast as nc
import reference
import values
from conformance import COLUMNS, DEVICES, FORMATS, ROOT, assert_updated
from narrowcast import registry
from weights import value_of

MOMENTS = ("exp_avg", "exp_avg_sq")
STATES = {
    path.stem: reference.load_state_format(path)
    for path in sorted((ROOT / "spec/states").glob("*.toml"))
}
ON_DEVICES = pytest.mark.parametrize("device", DEVICES)
ON_STATES = pytest.mark.parametrize("state", STATES)
# Whole blocks; a short last one; blocks of the weight's cut, too; and rows shorter than a block.
SHAPES = [(128, 256), (32, 320), (68, COLUMNS), (36, 52)]
HYPER = {"lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}


def test_every_spec_is_built():
    assert nc.state_formats() == sorted(STATES)
    for name, state in STATES.items():
        facts = registry.state_format(name)
        assert (facts.block, facts.roots) == (state.block, state.roots)


def moment(entries, key, state, nonnegative):
    """A moment as numbers, from its codes or from itself."""
    if key in entries:
        return entries[key].float().cpu().numpy()
    codes, scales = (entries[f"{key}_{state}{end}"].cpu().numpy() for end in ("", "_scale"))
    return STATES[state].decode(codes, scales, nonnegative)


class Truth:
    """A parameter of the reference. Moments are kept as the state format has them."""

    def __init__(self, value, state):
        self.value, self.state = value, STATES[state]
        zeros = np.zeros(value.shape, np.float32)
        self.in_format = self.state.holds(value.shape)
        self.kept = [self._kept(zeros, k) for k in (0, 1)]

    def _kept(self, moment, k):
        return self.state.encode(moment, bool(k)) if self.in_format else (moment,)

    def _moment(self, k):
        return self.state.decode(*self.kept[k], bool(k)) if self.in_format else self.kept[k][0]

    def step(self, gradient, t, options):
        self.value, *moments = reference.adam(
            self.value, self._moment(0), self._moment(1), gradient, t=t, **options
        )
        self.kept = [self._kept(moment, k) for k, moment in enumerate(moments)]

    def compare(self, entries, state, where):
        for k, key in enumerate(MOMENTS):
            names = [f"{key}_{state}", f"{key}_{state}_scale"] if self.in_format else [key]
            for name, truth in zip(names, self.kept[k], strict=True):
                ours = entries[name].cpu().numpy()
                assert ours.shape == truth.shape, f"{where}: {name}"
                if truth.dtype == np.float32:
                    assert reference.same_bits(ours, truth), f"{where}: {name}"
                else:
                    assert np.array_equal(ours, truth), f"{where}: {name}"


def gradient_of(shape, rng, t):
    """Of magnitudes far apart, in some blocks zero, and once not finite."""
    gradient = values.random(shape, rng) * 0.01
    gradient *= np.float32(10) ** rng.integers(-6, 2, (*gradient.shape[:-1], 1))
    gradient[0, : shape[1] // 2] = 0
    if t == 2:
        gradient[1, 0] = np.inf
        gradient[2, -1] = np.nan
    return gradient.astype(np.float32)


@ON_STATES
@ON_DEVICES
@pytest.mark.parametrize("name", [None, *FORMATS])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_steps(name, state, device, dtype):
    rng = np.random.default_rng(0)
    layers = nn.ModuleList(nn.Linear(k, m, bias=False) for m, k in SHAPES).to(device)
    if name is not None:
        nc.convert(layers, name)
    optimizer = nc.optim.AdamW(layers.parameters(), state_dtype=state, **HYPER)
    truth = []
    for layer in layers:
        value = (values.random(layer.weight.shape, rng) * 0.02).astype(np.float32)
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(value))
        truth.append(Truth(value, state))
    for t in (1, 2, 3):
        for layer, one in zip(layers, truth, strict=True):
            gradient = torch.from_numpy(gradient_of(layer.weight.shape, rng, t)).to(dtype)
            layer.weight.grad = None
            layer.weight.grad_dtype = None
            layer.weight.grad = gradient.to(device)
            one.step(gradient.float().numpy(), t, HYPER)
        optimizer.step()
        for layer, one in zip(layers, truth, strict=True):
            where = f"{tuple(one.value.shape)}, step {t}"
            assert reference.same_bits(value_of(layer.weight).cpu().numpy(), one.value), where
            one.compare(optimizer.state[layer.weight], state, where)
            if name is not None:
                assert_updated(layer.weight, name, one.value, where)


@ON_STATES
@ON_DEVICES
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_narrow_parameters(state, device, dtype):
    """Plain ones, whose state has a master: of a matrix, an image's kernel, a vector."""
    rng = np.random.default_rng(1)
    shapes = [(40, 300), (3, 5, 129), (300,)]
    start = [(values.random(shape, rng) * 0.02).astype(np.float32) for shape in shapes]
    parameters = [nn.Parameter(torch.from_numpy(one).to(device, dtype)) for one in start]
    optimizer = nc.optim.AdamW(parameters, state_dtype=state, **HYPER)
    truth = [Truth(one.detach().float().cpu().numpy(), state) for one in parameters]
    for t in (1, 2):
        for parameter, one in zip(parameters, truth, strict=True):
            gradient = torch.from_numpy(values.random(parameter.shape, rng) * 0.01).to(dtype)
            parameter.grad = gradient.to(device)
            one.step(gradient.float().numpy(), t, HYPER)
        optimizer.step()
        for parameter, one in zip(parameters, truth, strict=True):
            entries = optimizer.state[parameter]
            assert reference.same_bits(entries["master"].cpu().numpy(), one.value)
            assert torch.equal(parameter, entries["master"].to(dtype))
            one.compare(entries, state, f"{tuple(one.value.shape)}, step {t}")


@ON_STATES
@ON_DEVICES
@pytest.mark.parametrize("nonnegative", [False, True])
def test_conversions(state, device, nonnegative):
    """What loading of state dicts makes, of values of every kind."""
    rng = np.random.default_rng(2)
    facts, truth = registry.state_format(state), STATES[state]
    x = rng.integers(0, 2**32, (64, 1000), np.uint32).view(np.float32)
    ordinary = np.float32(10) ** rng.uniform(-40, 5, (64, 1000))
    x = np.where(rng.random((64, 1)) < 0.5, x, ordinary * values.random(x.shape, rng))
    x = x.astype(np.float32)
    x = np.abs(x) if nonnegative else x
    codes, scales = facts.encode(torch.from_numpy(x).to(device), nonnegative)
    expected = truth.encode(x, nonnegative)
    assert np.array_equal(codes.cpu().numpy(), expected[0])
    assert reference.same_bits(scales.cpu().numpy(), expected[1])
    decoded = facts.decode(codes, scales, nonnegative).cpu().numpy()
    assert reference.same_bits(decoded, truth.decode(*expected, nonnegative))
