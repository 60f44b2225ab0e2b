"""Gradients that no rank has, in formats whose scale spans all shards: values and bytes stay."""

import pytest
import torch

import narrowcast as nc
import ranks
from internals import is_stale, put
from models import BUFFERS, Model, assert_quantized, local_rows, loss_of, one_of_each, same, shard
from narrowcast.tensor import dtensors
from weights import quantized, value_of

SPANNING = one_of_each(
    lambda f: f.tensor_amax and (f.amax, f.gather, f.rowwise.block, f.tensor_scale)
)
SPANNING = [name for name in SPANNING if nc.format(name).tensor_amax]
TESTED_FORMATS = SPANNING
EVERY = (*BUFFERS, "history")
RATE, SEED = 1e-2, 7


def trained(mesh, format, rounding):
    torch.manual_seed(0)
    model = nc.convert(Model(64), format).to(mesh.device_type)
    shard(model, mesh, reshard_after_forward=True)
    named = [*model.named_parameters()]
    return model, nc.FusedAdam(named, lr=RATE, rounding=rounding, seed=SEED)


def weights(model):
    """The quantized parameters with their positions among all."""
    every = enumerate(model.named_parameters())
    return {
        name: (position, p)
        for position, (name, p) in every
        if isinstance(p.to_local(), nc.MasterWeight)
    }


def bytes_of(weight):
    """Copies of all buffers of a shard."""
    local = quantized(weight.to_local())
    return {
        name: getattr(local, name).clone() for name in EVERY if getattr(local, name) is not None
    }


def assert_whole(mesh, model):
    """All shards are those of one cast of the whole value, on every rank."""
    for name, (_, weight) in weights(model).items():
        local, whole = weight.to_local(), value_of(weight.full_tensor()).cpu()
        assert not is_stale(local), name
        narrow = quantized(local)
        if narrow.history is not None:
            fresh = nc.quantize(whole, local.format)
            assert same(narrow.history[2:3], fresh.tensor_amax), name
            assert_quantized(narrow.cpu(), local.value.cpu(), name)
        else:
            fresh = nc.quantize(whole, local.format)
            assert same(narrow.tensor_amax, fresh.tensor_amax), name
            assert same(narrow.dequantize(), local_rows(fresh.dequantize(), weight, mesh)), name


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@ranks.on(2)
def test_all_lack(mesh, format, rounding):
    """Where no rank has a gradient, nothing changes, not even a byte."""
    model, optimizer = trained(mesh, format, rounding)
    loss_of(model, 0, mesh.device_type).backward()
    optimizer.step()
    optimizer.zero_grad()
    before = {name: bytes_of(p) for name, (_, p) in weights(model).items()}
    values = {name: p.to_local().value.clone() for name, (_, p) in weights(model).items()}
    loss_of(model, 1, mesh.device_type).backward()
    for name, (_, p) in weights(model).items():
        if name.startswith("blocks.0"):
            p.grad = None
    optimizer.step()
    for name, (_, p) in weights(model).items():
        after, lacks = bytes_of(p), name.startswith("blocks.0")
        assert same(p.to_local().value, values[name]) == lacks, name
        assert same(after["rowwise_data"], before[name]["rowwise_data"]) == lacks, name
        for key in before[name] if lacks else ():
            assert same(after[key], before[name][key]), (name, key)


@ranks.on(2)
def test_written_and_lacking(mesh, format):
    """A weight that was written to, and then lacks a gradient."""
    model, optimizer = trained(mesh, format, "nearest")
    loss_of(model, 0, mesh.device_type).backward()
    optimizer.step()
    weight = model.head.weight
    with torch.no_grad():
        weight.mul_(3)
    weight.grad = None
    before = weight.to_local().value.clone()
    optimizer.step()
    assert same(weight.to_local().value, before)
    with torch.no_grad():
        loss_of(model, 1, mesh.device_type)
    assert_whole(mesh, model)


@ranks.on(2)
def test_a_frozen_weight(mesh, format):
    """A frozen weight has no gradient on any rank: its values are not read in a step."""
    model, optimizer = trained(mesh, format, "nearest")
    frozen = model.head.weight.requires_grad_(False)
    loss_of(model, 0, mesh.device_type).backward()
    before = bytes_of(frozen)
    value = dtensors.local_of(frozen).value
    put(value, torch.full_like(value, 1e30))
    optimizer.step()
    assert all(same(now, before[name]) for name, now in bytes_of(frozen).items())
