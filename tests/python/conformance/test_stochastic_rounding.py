"""Stochastic rounding against the reference, byte for byte: a function of seed, step and the
element's place in the whole tensor, in either usage, on every machine and in every shard.
"""

import numpy as np
import pytest
import torch
from torch import nn

import narrowcast as nc
import reference
import values
from conformance import FORMATS, KINDS, assert_same, usages
from models import DEVICES
from models import assert_same as assert_same_tensors

FORMAT_NAMES = pytest.mark.parametrize("name", FORMATS)
ON_DEVICES = pytest.mark.parametrize("device", DEVICES)
LONG = {"seed": 0x123456789ABCDEF0, "step": 2**33 + 7}


def stochastic(x, name, device="cpu", **options):
    return nc.quantize(torch.from_numpy(x).to(device), name, rounding="stochastic", **options)


def check(x, name, device, **options):
    wanted = usages(FORMATS[name], x.shape)
    got = stochastic(x, name, device, **options, **wanted)
    truth = reference.quantize(x, FORMATS[name], rounding="stochastic", **options, **wanted)
    assert_same(got, truth, f"{name} {x.shape} {options}")


@ON_DEVICES
def test_golden_codes(device):
    """0.3 four times, -0.3 twice and 2.5 twice, with a scale of 1: codes 0 1 1 1 8 8 5 5."""
    x = np.zeros((1, 32), np.float32)
    x[0, :9] = [0.3, 0.3, 0.3, 0.3, -0.3, -0.3, 2.5, 2.5, 6]
    for name, fmt in FORMATS.items():
        if (fmt.element.name, fmt.scale, fmt.rowwise.block) == ("e2m1", "e8m0", (1, 32)):
            q = stochastic(x, name, device, seed=1, step=2, columnwise=False)
            assert q.rowwise_scale_inv[0, 0] == 127
            assert q.rowwise_data[0, :4].tolist() == [0x10, 0x11, 0x88, 0x55]


@FORMAT_NAMES
@ON_DEVICES
@pytest.mark.parametrize("kind", ["random", "points", "thresholds_1x16", "random_bits"])
def test_is_the_reference(name, device, kind):
    rng = np.random.default_rng(1)
    for shape in ((160, 288), (36, 52), (1, 300)):
        x = KINDS[kind](shape, rng).astype(np.float32)
        check(x, name, device, seed=3, step=5)
    check(x, name, device, **LONG, offset=2**34 + 1)
    check(x, name, device, seed=3, step=5, source="bf16")


@FORMAT_NAMES
@ON_DEVICES
def test_each_usage_alone(name, device):
    x = values.points((160, 96), np.random.default_rng(3))
    for only in ({"columnwise": False}, {"rowwise": False}):
        truth = reference.quantize(x, FORMATS[name], rounding="stochastic", seed=9, step=4, **only)
        assert_same(stochastic(x, name, device, seed=9, step=4, **only), truth, name)


@FORMAT_NAMES
@ON_DEVICES
def test_a_shard_is_its_part_of_the_whole(name, device):
    fmt, step = FORMATS[name], nc.format(name).row_step
    rng = np.random.default_rng(4)
    x = values.random((3 * max(step, 32), 96), rng)
    for begin in range(0, len(x), max(step, 32)):
        x[begin, 0] = 10.0  # the amax of the whole is that of every part
    whole = stochastic(x, name, device, seed=5, step=6)
    for begin in range(0, len(x), max(step, 32)):
        end = begin + max(step, 32)
        part = stochastic(x[begin:end], name, device, seed=5, step=6, offset=begin * 96)
        truth = reference.quantize(
            x[begin:end], fmt, rounding="stochastic", seed=5, step=6, offset=begin * 96
        )
        assert_same(part, truth, f"{name} {begin}")
        assert_same_tensors(whole[begin:end].clone(), part)


@FORMAT_NAMES
def test_neighbours_alone_and_their_mean(name):
    """Each block's largest element is the type's largest, so that every scale is 1."""
    element, steps = FORMATS[name].element, 200
    x = np.random.default_rng(5).uniform(-1, 1, (32, 64)).astype(np.float32) * element.max
    x[np.add.outer(np.arange(32), np.arange(64)) % 16 == 0] = element.max
    index = np.searchsorted(element.magnitudes, np.abs(x), side="right") - 1
    above = np.minimum(index + 1, len(element.magnitudes) - 1)
    below, above = (np.copysign(element.magnitudes[i], x) for i in (index, above))
    total = np.zeros(x.shape)
    for t in range(1, steps + 1):
        q = stochastic(x, name, seed=7, step=t, columnwise=False)
        value = q.dequantize().numpy().astype(np.float64)
        assert np.all((value == below) | (value == above))
        total += value
    distance = np.abs(above - below)
    fraction = np.abs(x - below) / np.where(distance == 0, 1, distance)
    sigma = distance * np.sqrt(steps * fraction * (1 - fraction))
    error = total - steps * x.astype(np.float64)
    assert np.abs(error).sum() > 0
    assert np.all(np.abs(error) <= 6 * sigma + distance)  # of 2048 draws, and rare events
    assert abs(error.sum()) <= 5 * np.sqrt((sigma**2).sum())


@FORMAT_NAMES
@ON_DEVICES
def test_other_seeds_steps_and_places_give_other_bytes(name, device):
    x = values.random((64, 128), np.random.default_rng(6))
    first = stochastic(x, name, device, seed=1, step=1)
    for options in (
        {"seed": 2, "step": 1},
        {"seed": 1, "step": 2},
        {"seed": 1, "step": 1, "offset": 4},
    ):
        other = stochastic(x, name, device, **{"seed": 1, "step": 1, **options})
        assert not torch.equal(first.rowwise_data, other.rowwise_data)
        assert torch.equal(first.rowwise_scale_inv, other.rowwise_scale_inv)
    assert_same_tensors(stochastic(x, name, device, seed=1, step=1), first)


@FORMAT_NAMES
@ON_DEVICES
def test_the_optimizer_counts_steps_and_positions(name, device):
    """The seed of a parameter is the base seed and its position, plain and frozen ones included."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(64, 128), nn.Linear(128, 64), nn.Linear(64, 32)).to(device)
    layers[1].weight.requires_grad_(False)
    nc.convert(layers, name, trainable=True)
    parameters = [*layers.parameters()]
    groups = [{"params": parameters[3:]}, {"params": parameters[:3]}]
    optimizer = nc.FusedAdam(groups, lr=1e-2, rounding="stochastic", seed=2**40)
    delayed = {}
    if FORMATS[name].amax == "delayed":
        for p in parameters[::2]:
            delayed[p] = reference.Delayed(FORMATS[name])
            delayed[p].cast(p.value.cpu().numpy())
    for t in (1, 2, 3):
        layers(torch.ones(4, 64, device=device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        for position, p in enumerate([*parameters[3:], *parameters[:3]]):
            if isinstance(p, nc.MasterWeight) and p.requires_grad:
                value = p.value.cpu().numpy()
                options = {"rounding": "stochastic", "seed": 2**40 + position, "step": t}
                if p in delayed:
                    truth = delayed[p].cast(value, **options)
                else:
                    truth = reference.quantize(value, FORMATS[name], **options)
                assert_same(p.detach(), truth, f"parameter {position}, step {t}")
