"""A gradient that one rank alone lacks, in formats whose scale spans all shards: its masters stay,
and all ranks go on with bytes of one amax.
"""

import pytest
import torch
import torch.distributed as dist

import narrowcast as nc
import ranks
from models import (
    Model,
    assert_quantized,
    assert_same,
    local_rows,
    loss_of,
    one_of_each,
    same,
    shard,
)

SPANNING = one_of_each(
    lambda f: f.tensor_amax and (f.amax, f.gather, f.rowwise.block, f.tensor_scale)
)
SPANNING = [name for name in SPANNING if nc.format(name).tensor_amax]
TESTED_FORMATS = SPANNING
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
        if isinstance(p.to_local(), nc.QuantizedTensor)
    }


def count(optimizer, parameter):
    """Of its steps: before its first gradient on this rank it has no state."""
    return int(optimizer.state.get(parameter, {}).get("step", 0))


def without_gradients(mesh, model, which):
    """Takes gradients away on the last rank."""
    if mesh.get_local_rank() != mesh.size() - 1:
        return
    for name, p in model.named_parameters():
        if which == "all" or name.endswith("up.weight"):
            p.grad = None


def assert_whole(mesh, model, optimizer, stepped, rounding):
    """All shards are those of one cast of the whole master, on every rank. `stepped`: whether a
    weight had a gradient anywhere.
    """
    for name, (position, weight) in weights(model).items():
        local, whole = weight.to_local(), weight.full_tensor().float().cpu()
        assert not local._store.is_stale, name
        if local.history is not None:
            value = local.detach().cpu()
            assert same(local.history[2:3], nc.quantize(whole, local.format).amax), name
            if rounding == "nearest":
                assert_quantized(value, local.master.cpu(), name)
        elif not stepped(name):
            assert same(local.amax, nc.quantize(whole, local.format).amax), name
        else:
            options = {}
            step = count(optimizer, weight)
            if rounding == "stochastic" and step > 0:
                options = {"rounding": rounding, "seed": SEED + position, "step": step}
            fresh = nc.quantize(whole, local.format, **options)
            assert same(local.amax, fresh.amax), name
            assert same(local.dequantize(), local_rows(fresh.dequantize(), weight, mesh)), name


def histories(model):
    return [p.to_local().history for _, p in weights(model).values()]


def one_rank_lacks(mesh, format, which, rounding):
    model, optimizer = trained(mesh, format, rounding)
    for step in range(4):
        loss_of(model, step, mesh.device_type).backward()
        if step in (0, 2):
            without_gradients(mesh, model, which)
        before = {name: p.to_local().master.clone() for name, (_, p) in weights(model).items()}
        counts = {name: count(optimizer, p) for name, (_, p) in weights(model).items()}
        optimizer.step()
        for name, (_, p) in weights(model).items():
            had = p.grad is not None
            assert count(optimizer, p) == counts[name] + had, name
            assert same(p.to_local().master, before[name]) != had, name
        optimizer.zero_grad()
        assert_whole(mesh, model, optimizer, lambda name: True, rounding)
        every = [None] * mesh.size()
        mine = [None if h is None else h.tolist() for h in histories(model)]
        dist.all_gather_object(every, mine)
        assert all(one == mine for one in every), step


@pytest.mark.parametrize(
    ("world", "which", "rounding"),
    [
        (2, "one", "nearest"),
        (2, "all", "stochastic"),
        (4, "one", "stochastic"),
        (4, "all", "nearest"),
    ],
)
def test_one_rank_lacks(format, device, world, which, rounding):
    ranks.run(world, device, one_rank_lacks, format, which, rounding)


def all_lack(mesh, format, rounding):
    """Where no rank has a gradient, nothing changes, not even a byte."""
    model, optimizer = trained(mesh, format, rounding)
    loss_of(model, 0, mesh.device_type).backward()
    optimizer.step()
    optimizer.zero_grad()
    before = {name: p.to_local().detach().clone() for name, (_, p) in weights(model).items()}
    loss_of(model, 1, mesh.device_type).backward()
    for name, (_, p) in weights(model).items():
        if name.startswith("blocks.0"):
            p.grad = None
    optimizer.step()
    for name, (_, p) in weights(model).items():
        if name.startswith("blocks.0"):
            assert_same(p.to_local(), before[name], what=name)
            assert same(p.to_local().history, before[name].history), name
        else:
            assert not same(p.to_local().rowwise_data, before[name].rowwise_data), name


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_all_lack(format, device, rounding):
    ranks.run(2, device, all_lack, format, rounding)


def written_and_lacking(mesh, format, written_on):
    """A shard that was written to, and then lacks a gradient on one rank, or on all."""
    model, optimizer = trained(mesh, format, "nearest")
    loss_of(model, 0, mesh.device_type).backward()
    for lacking in ("last", "all"):
        weight = model.head.weight
        if mesh.get_local_rank() == written_on:
            with torch.no_grad():
                weight.to_local().copy_(3 * weight.to_local().master)
        if lacking == "all" or mesh.get_local_rank() == 1:
            weight.grad = None
        optimizer.step()
        if lacking == "all":
            with torch.no_grad():
                loss_of(model, 1, mesh.device_type)
        assert_whole(mesh, model, optimizer, lambda name: True, "nearest")


@pytest.mark.parametrize("written_on", [0, 1])
def test_written_and_lacking(format, device, written_on):
    ranks.run(2, device, written_and_lacking, format, written_on)


def frozen(mesh, format):
    """A frozen weight has no gradient on any rank: its masters are not read in a step."""
    from narrowcast.tensor import casting

    model, optimizer = trained(mesh, format, "nearest")
    model.head.weight.requires_grad_(False)
    found, casts_of = [], casting.casts_of
    loss_of(model, 0, mesh.device_type).backward()
    casting.casts_of = lambda stores: found.append(stores) or casts_of(stores)
    try:
        optimizer.step()
    finally:
        casting.casts_of = casts_of
    return len(found)


def test_a_frozen_weight(format, device):
    expected = 1 if nc.format(format).amax == "delayed" else 0  # the agreement's
    assert ranks.run(2, device, frozen, format) == [expected] * 2
