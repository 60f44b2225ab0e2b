"""Steps over flat shards that are handed what is wrong, and masters that are no parameters of
torch's, or no longer the optimizer's.
"""

import pytest
import torch

import flats
import narrowcast as nc
import ranks
from fused import NEAREST, Flat, error_of, gradient_of
from models import same
from narrowcast import flat

WRONG = {
    "kind": (TypeError, "not a narrowcast.FusedAdam"),
    "shape": (ValueError, "one dimension, contiguous, is needed"),
    "parameter": (ValueError, "is no parameter of the optimizer"),
    "twice": (ValueError, "has been fused with this optimizer already"),
    "master": (ValueError, "is fused with another weight already"),
    "shared": (ValueError, "weight 1 has the master shard of weight 0"),
    "range": (ValueError, "are not all among the"),
}


@pytest.mark.parametrize("which", WRONG)
def test_wrong_arguments(which, device):
    value = flats.value_of((64, 64), special=False).to(device)
    weights, starts = [nc.quantize(value, "nvfp4")], [0]
    master = torch.nn.Parameter(value.view(-1).clone())
    optimizer, masters = nc.FusedAdam([master]), [master]
    if which in ("twice", "master"):
        flat.fuse(optimizer, weights, masters, starts)
    if which == "master":
        weights = [nc.quantize(value, "nvfp4")]
    elif which == "kind":
        optimizer = torch.optim.Adam([master])
    elif which == "shape":
        masters = [torch.nn.Parameter(master.detach().view(-1, 1))]
    elif which == "parameter":
        masters = [torch.nn.Parameter(master.detach().clone())]
    elif which == "shared":
        weights, starts = [*weights, nc.quantize(value, "nvfp4")], [0, 0]
        masters = [master, master]
    elif which == "range":
        starts = [1]
    kind, words = WRONG[which]
    with pytest.raises(kind, match=words):
        flat.fuse(optimizer, weights, masters, starts)


# ---- masters that are no parameters of torch's, or no longer the optimizer's ----


def detached(mesh, name):
    """Masters that require no gradient, as ZeRO's are. No rank has gradients in the second step, of
    two weights, of which rank 1 owns nothing of the second.
    """
    values = [flats.value_of((64, 128), seed=seed, special=False) for seed in range(2)]
    cuts = [[0, 1001, 64 * 128], [0, 64 * 128, 64 * 128]]
    parts = Flat(mesh, values, name, cuts, NEAREST)
    for master in parts.masters:
        if master is not None:
            master.requires_grad_(False)
    parts.step([gradient_of((64, 128), 0, seed) for seed in range(2)])
    before = [{k: v.clone() for k, v in flats.stored(one).items()} for one in parts.weights]
    for _ in range(2):
        parts.step([None, None])
    for old, weight in zip(before, parts.weights, strict=True):
        new = flats.stored(weight)
        assert all(same(old[key], new[key]) for key in old)


@pytest.mark.parametrize("name", ["fp8_e4m3", "fp8_e4m3_delayed", "nvfp4"])
def test_masters_without_requires_grad(name, device):
    """Nothing changes anywhere, whoever owns what, where no rank has a gradient."""
    ranks.run(2, device, detached, name)


def removed(mesh, name):
    """The second of two masters is taken out of its group, on all ranks."""
    values = [flats.value_of((64, 128), seed=seed, special=False) for seed in range(2)]
    parts = Flat(mesh, values, name, [[0, 1001, 64 * 128]] * 2, NEAREST)
    gradients = [gradient_of((64, 128), 0, seed) for seed in range(2)]
    parts.step(gradients)
    before = parts.masters[1].detach().clone(), flats.stored(parts.weights[1])
    stored = {key: one.clone() for key, one in before[1].items()}
    parts.optimizer.param_groups[0]["params"] = parts.masters[:1]
    first = parts.masters[0].detach().clone()
    parts.step(gradients)
    assert not same(first, parts.masters[0])
    assert same(before[0], parts.masters[1])
    assert all(same(one, stored[key]) for key, one in flats.stored(parts.weights[1]).items())


@pytest.mark.parametrize("name", ["fp8_e4m3", "mxfp8_e4m3", "nvfp4"])
def test_a_master_that_leaves_its_group_stays(name, device):
    ranks.run(2, device, removed, name)


def one_process(options=NEAREST, count=1):
    """The shards of weights in one process, and gradients of them."""
    values = [flats.value_of((64, 128), seed=seed, special=False) for seed in range(count)]
    gradients = [gradient_of((64, 128), 0, seed) for seed in range(count)]
    return Flat(None, values, "nvfp4", [[0, 64 * 128]] * count, options), gradients


def test_a_master_of_another_size():
    parts, gradients = one_process()
    parts.step(gradients)
    (master,) = parts.masters
    master.grad = None
    master.data = torch.zeros(16)
    state = parts.optimizer.state[master]
    state["exp_avg"] = state["exp_avg_sq"] = torch.zeros_like(master)
    for _ in range(2):
        kind, words = error_of(parts.optimizer.step)
        assert kind == "ValueError" and "16 elements, and the flat shard" in words


@pytest.mark.parametrize("steps", [0, 1])
def test_a_step_that_fails(steps):
    """Nothing changes, and the next one is as if it had not been tried."""
    parts, gradients = one_process()
    for _ in range(steps):
        parts.step(gradients)
    (group,) = parts.optimizer.param_groups
    before = {key: one.clone() for key, one in flats.stored(parts.weights[0]).items()}
    rate, group["lr"] = group["lr"], -1.0
    assert "lr -1.0" in error_of(parts.step, gradients)[1]
    assert all(same(one, before[key]) for key, one in flats.stored(parts.weights[0]).items())
    group["lr"] = rate
    parts.step(gradients)
    other, _ = one_process()
    for _ in range(steps + 1):
        other.step(gradients)
    assert same(parts.masters[0], other.masters[0])
    written = flats.stored(other.weights[0])
    assert all(same(one, written[key]) for key, one in flats.stored(parts.weights[0]).items())


def test_two_roundings_of_one_format():
    parts, gradients = one_process(count=2)
    (group,) = parts.optimizer.param_groups
    group["params"] = parts.masters[:1]
    other = {**group, "params": parts.masters[1:], "rounding": "stochastic"}
    parts.optimizer.param_groups.append(other)
    kind, words = error_of(parts.step, gradients)
    assert kind == "ValueError" and "one rounding" in words
