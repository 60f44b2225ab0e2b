"""Delayed scaling against the reference, step by step: docs/numerics.md, "Delayed scaling"."""

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.distributed.fsdp import fully_shard

import narrowcast as nc
import ranks
import reference
import values
from conformance import FORMATS, assert_same
from models import DEVICES, assert_quantized, build, build_plain

NAMES = [name for name in FORMATS if FORMATS[name].amax == "delayed"]
pytestmark = pytest.mark.skipif(not NAMES, reason="no format has a delayed amax")
ON_DEVICES = pytest.mark.parametrize("device", DEVICES)
FORMAT_NAMES = pytest.mark.parametrize("name", NAMES)


class Casts:
    """A weight whose value is set before each step, and the reference's history of the same. The
    step moves nothing: its learning rate is 0.
    """

    def __init__(self, name, x, device):
        layer = nn.Linear(*x.shape[::-1], bias=False)
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(x))
        self.weight = nc.convert(layer.to(device), name).weight
        self.optimizer = nc.FusedAdam([self.weight], lr=0.0, weight_decay=0.0)
        self.truth = reference.Delayed(FORMATS[name])
        self.expected = self.truth.cast(x)
        self.check("at first")

    def check(self, where):
        assert_same(self.weight.detach(), self.expected, where)

    def step(self, x=None, found_inf=False, gradient=0.0):
        if x is not None:
            # As an update would have moved it: a write that is seen begins a history anew.
            self.weight.value.data.copy_(torch.from_numpy(x))
        self.weight.grad = torch.full_like(self.weight, gradient, dtype=torch.float32)
        self.optimizer.found_inf = torch.tensor(float(found_inf), device=self.weight.device)
        self.optimizer.step()
        if not found_inf:
            self.expected = self.truth.cast(self.weight.value.cpu().numpy())
        self.check(f"step {len(self.truth.amaxes)}")


def matrix(size, seed=0):
    return values.random((4, 32), np.random.default_rng(seed)) * np.float32(size)


@FORMAT_NAMES
@ON_DEVICES
def test_quantize_has_no_history(name, device):
    """nc.quantize casts with the tensor's own amax, whatever was cast before."""
    for size in (1, 100, 0.01):
        x = matrix(size)
        truth = reference.quantize(x, FORMATS[name])
        assert_same(nc.quantize(torch.from_numpy(x).to(device), name), truth, f"size {size}")


@FORMAT_NAMES
@ON_DEVICES
@pytest.mark.parametrize(
    "sizes",
    [
        [1, 2, 4, 8, 1e6],
        [1, 0.1, 1e-6, 1e-30, 1e-42],
        [0, 0, 3, 0, 2],
        [1, 0, 0, 5],
        [1e38, 1, 1e38],
        [1e-44, 1],
    ],
    ids=["growing", "shrinking", "zeros first", "zeros", "huge", "tiny"],
)
def test_sizes(name, device, sizes):
    casts = Casts(name, matrix(sizes[0]), device)
    for t, size in enumerate(sizes[1:]):
        casts.step(matrix(size, t))


@FORMAT_NAMES
@ON_DEVICES
def test_special_values(name, device):
    """NaN counts for no amax. A value that overflows to infinity freezes the multiplier."""
    casts = Casts(name, matrix(1), device)
    x = matrix(2)
    x[1, 3] = np.nan
    casts.step(x)
    x[1, 3] = np.float32(3e38)
    group = casts.optimizer.param_groups[0]
    group["lr"] = 3e38
    casts.step(x, gradient=-1.0)
    assert casts.weight.value.isinf().any()
    group["lr"] = 0.0
    for t in range(3):
        casts.optimizer.state[casts.weight]["exp_avg"].zero_()
        casts.step(matrix(8, t))


@FORMAT_NAMES
@ON_DEVICES
def test_the_window(name, device):
    """The first amax is the largest; it is forgotten after 1024."""
    casts = Casts(name, matrix(9), device)
    x = matrix(1)
    for _ in range(1026):
        casts.step(x)


@FORMAT_NAMES
@ON_DEVICES
def test_a_skipped_step_records_nothing(name, device):
    casts = Casts(name, matrix(1), device)
    casts.step(matrix(2))
    casts.step(found_inf=True)
    casts.step(matrix(3))
    casts.step(matrix(3))


@FORMAT_NAMES
@ranks.on(1, "cpu")
def test_a_sharded_state_of_another_format(mesh, name, other="mxfp8_e4m3"):
    """By get_state_dict and set_state_dict, between which nobody fills the histories."""
    optimizers, models = [], []
    for format in (other, name):
        torch.manual_seed(len(models))
        model = nn.Sequential(nn.Linear(64, 64, bias=False))
        with torch.no_grad():
            model[0].weight.mul_(1 + 4 * (format == other))
        models.append(fully_shard(nc.convert(model, format), mesh=mesh))
        optimizers.append(nc.FusedAdam(models[-1].parameters(), lr=1e-2))
    models[0](torch.ones(2, 64)).sum().backward()
    optimizers[0].step()
    options = StateDictOptions(full_state_dict=True)
    model_state, state = get_state_dict(models[0], optimizers[0], options=options)
    parts = {"model_state_dict": model_state, "optim_state_dict": state}
    set_state_dict(models[1], optimizers[1], **parts, options=options)
    models[1].unshard()
    value = models[0].state_dict()["0.weight"].full_tensor()
    expected = nc.quantize(value, name).dequantize()
    assert torch.equal(models[1][0].weight.dequantize(), expected)


@FORMAT_NAMES
def test_a_frozen_weight_that_is_loaded_begins_a_history(name, tmp_path):
    """Of a plain checkpoint, which has none, and whose values are of another size."""
    plain = build_plain(name, seed=2)
    with torch.no_grad():
        plain.head.weight.mul_(100)
    dcp.save({"model": plain.state_dict()}, checkpoint_id=tmp_path)
    model = build(name)
    model.head.weight.requires_grad_(False)
    state = {"model": get_model_state_dict(model)}
    dcp.load(state, checkpoint_id=tmp_path)
    set_model_state_dict(model, state["model"])
    assert_quantized(model.head.weight.detach(), plain.head.weight.detach())
    model.load_state_dict({**plain.state_dict()})
    assert_quantized(model.head.weight.detach(), plain.head.weight.detach())
