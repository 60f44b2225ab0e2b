"""What ranks say when a step over flat shards is not one of all of them alike, or is handed what is
wrong: an error on each, and no rank waits.
"""

import pytest
import torch

import flat
import narrowcast as nc
import ranks
from fused import NEAREST, STOCHASTIC, Flat, error_of, gradient_of
from models import same
from narrowcast import zero


def lone_gradient(mesh, name):
    values = [flat.value_of((64, 128), special=False)]
    parts = Flat(mesh, values, name, [[0, 1001, 64 * 128]], NEAREST)
    gradients = [gradient_of((64, 128), 0, 0)]
    # A GPU tells of a step when the next one begins.
    errors = [error_of(parts.step, gradients if parts.rank == 0 else [None]) for _ in range(2)]
    return next(error for error in errors if error is not None)


def test_a_gradient_on_one_rank_alone(device):
    errors = ranks.run(2, device, lone_gradient, "nvfp4")
    for kind, words in errors:
        assert kind == "DisagreementError"
        assert "some ranks had a gradient of their shard and some had none" in words


# ---- steps that fail ----


def failing(mesh, name):
    values = [flat.value_of((64, 128), special=False)]
    parts = Flat(mesh, values, name, [[0, 1001, 64 * 128]], NEAREST)
    gradients = [gradient_of((64, 128), 0, 0)]
    parts.step(gradients)
    before = {key: one.clone() for key, one in flat.stored(parts.weights[0]).items()}
    if parts.rank == 1:
        parts.optimizer.param_groups[0]["lr"] = -1.0
    errors = [error_of(parts.step, gradients) for _ in range(2)]
    changed = not all(same(one, before[key]) for key, one in flat.stored(parts.weights[0]).items())
    return errors, changed and parts.rank == 1


def test_a_step_that_fails_on_one_rank(device):
    (first, _), (second, changed) = ranks.run(2, device, failing, "nvfp4")
    said = [words for error in first if error is not None for words in error]
    assert any("FusedAdam's step failed on rank 1 of the group" in words for words in said)
    assert "lr -1.0" in second[0][1] and not changed


def failing_of_two(mesh):
    """One optimizer that was fused twice, as over two process groups."""
    group, weights, masters, starts = mesh.get_group(), [], [], []
    for place in range(2):
        value = flat.value_of((64, 64), seed=place, special=False)
        weights.append(nc.quantize(value, "mxfp4"))
        master, start = flat.shards(value, [0, 1999, 64 * 64], mesh.get_local_rank())
        masters.append(torch.nn.Parameter(master))
        masters[-1].grad = torch.ones_like(master)
        starts.append(start)
    optimizer = nc.FusedAdam(masters)
    for one in range(2):
        some = slice(one, one + 1)
        zero.fuse(optimizer, weights[some], masters[some], starts[some], group)
    optimizer.step()
    rate = optimizer.param_groups[0]["lr"]
    if mesh.get_local_rank() == 1:
        optimizer.param_groups[0]["lr"] = -1.0
    kind, _ = error_of(optimizer.step)
    optimizer.param_groups[0]["lr"] = rate
    nc.quantize_master_weights(weights, masters, starts, group)
    optimizer.step()
    optimizer.step()
    return kind


def test_a_failure_is_heard_once_whatever_is_reduced():
    assert ranks.run(2, "cpu", failing_of_two) == ["DisagreementError", "ValueError"]


def other_seeds(mesh):
    options = {**STOCHASTIC, "seed": mesh.get_local_rank()}
    values = [flat.value_of((64, 128), special=False)]
    parts = Flat(mesh, values, "nvfp4", [[0, 1001, 64 * 128]], options)
    errors = [error_of(parts.step, [gradient_of((64, 128), 0, 0)]) for _ in range(2)]
    return next(error for error in errors if error is not None)


def test_ranks_with_other_seeds(device):
    errors = ranks.run(2, device, other_seeds)
    for kind, words in errors:
        assert kind == "DisagreementError"
        assert "the ranks' groups differ in rounding or seed" in words


WRONG = {
    "kind": (TypeError, "not a narrowcast.FusedAdam"),
    "shape": (ValueError, "one dimension, contiguous, is needed"),
    "parameter": (ValueError, "is no parameter of the optimizer"),
    "twice": (ValueError, "has been fused with this optimizer already"),
    "master": (ValueError, "is fused with another weight already"),
    "shared": (ValueError, "weight 1 has the master shard of weight 0"),
    "range": (ValueError, "are not all among the"),
}


def wrong(mesh, which):
    """On rank 1 alone."""
    value, is_wrong = flat.value_of((64, 64), special=False), mesh.get_local_rank() == 1
    device = mesh.device_type
    weight = nc.quantize(value.to(device), "nvfp4")
    own, start = flat.shards(value.to(device), [0, 1000, 64 * 64], mesh.get_local_rank())
    master = torch.nn.Parameter(own)
    optimizer = nc.FusedAdam([master])
    weights, masters, starts = [weight], [master], [start]
    if which in ("twice", "master"):
        zero.fuse(optimizer, weights, masters, starts, mesh.get_group())
        if not is_wrong:
            master = torch.nn.Parameter(own.clone())
            optimizer, masters = nc.FusedAdam([master]), [master]
        if which == "master":
            weights = [nc.quantize(value.to(device), "nvfp4")]
    if is_wrong and which == "kind":
        optimizer = torch.optim.Adam([master])
    if is_wrong and which == "shape":
        masters = [torch.nn.Parameter(own.view(-1, 1))]
    if is_wrong and which == "parameter":
        masters = [torch.nn.Parameter(own.clone())]
    if which == "shared":
        weights, starts = [weight, nc.quantize(value.to(device), "nvfp4")], starts * 2
        masters = [master, master if is_wrong else torch.nn.Parameter(own.clone())]
        optimizer = nc.FusedAdam([*dict.fromkeys(masters)])
    if is_wrong and which == "range":
        starts = [start + 1]
    return error_of(zero.fuse, optimizer, weights, masters, starts, mesh.get_group())


@pytest.mark.parametrize("which", WRONG)
def test_one_error_on_every_rank(which, device):
    other, own = ranks.run(2, device, wrong, which)
    kind, words = WRONG[which]
    assert own[0] == kind.__name__ and words in own[1]
    assert other[0] == "DisagreementError" and "fuse failed on rank 1" in other[1]
    assert words in other[1]


# ---- masters that are no parameters of torch's, or no longer the optimizer's ----


def detached(mesh, name, on_ranks):
    """Masters that require no gradient, as ZeRO's are. Some ranks have gradients in the second
    step, of two weights, of which rank 1 owns nothing of the second.
    """
    values = [flat.value_of((64, 128), seed=seed, special=False) for seed in range(2)]
    cuts = [[0, 1001, 64 * 128], [0, 64 * 128, 64 * 128]]
    parts = Flat(mesh, values, name, cuts, NEAREST)
    for master in parts.masters:
        if master is not None:
            master.requires_grad_(False)
    gradients = [gradient_of((64, 128), 0, seed) for seed in range(2)]
    parts.step(gradients)
    before = [{k: v.clone() for k, v in flat.stored(one).items()} for one in parts.weights]
    some = gradients if parts.rank in on_ranks else [None, None]
    errors = [error_of(parts.step, some) for _ in range(2)]
    after = [flat.stored(weight) for weight in parts.weights]
    unchanged = [
        all(same(old[key], new[key]) for key in old) for old, new in zip(before, after, strict=True)
    ]
    return next((error for error in errors if error is not None), None), unchanged


@pytest.mark.parametrize("name", ["fp8_e4m3", "fp8_e4m3_delayed", "nvfp4"])
def test_masters_without_requires_grad(name, device):
    """Nothing changes anywhere, whoever owns what, where no rank has a gradient."""
    assert ranks.run(2, device, detached, name, []) == [(None, [True, True])] * 2
    for error, _ in ranks.run(2, device, detached, name, [0]):
        assert error[0] == "DisagreementError" and "some had none" in error[1]


def removed(mesh, name):
    """The second of two masters is taken out of its group, on all ranks."""
    values = [flat.value_of((64, 128), seed=seed, special=False) for seed in range(2)]
    parts = Flat(mesh, values, name, [[0, 1001, 64 * 128]] * 2, NEAREST)
    gradients = [gradient_of((64, 128), 0, seed) for seed in range(2)]
    parts.step(gradients)
    before = parts.masters[1].detach().clone(), flat.stored(parts.weights[1])
    stored = {key: one.clone() for key, one in before[1].items()}
    parts.optimizer.param_groups[0]["params"] = parts.masters[:1]
    first = parts.masters[0].detach().clone()
    parts.step(gradients)
    assert not same(first, parts.masters[0])
    assert same(before[0], parts.masters[1])
    assert all(same(one, stored[key]) for key, one in flat.stored(parts.weights[1]).items())


@pytest.mark.parametrize("name", ["fp8_e4m3", "mxfp8_e4m3", "nvfp4"])
def test_a_master_that_leaves_its_group_stays(name, device):
    ranks.run(2, device, removed, name)


def replaced(mesh, elements):
    """A master whose memory is of another size, on rank 1."""
    values = [flat.value_of((64, 128), special=False)]
    parts = Flat(mesh, values, "nvfp4", [[0, 1001, 64 * 128]], NEAREST)
    gradients = [gradient_of((64, 128), 0, 0)]
    parts.step(gradients)
    if parts.rank == 1:
        master = parts.masters[0]
        master.grad = None
        master.data = torch.zeros(elements, device=master.device)
        state = parts.optimizer.state[master]
        state["exp_avg"] = state["exp_avg_sq"] = torch.zeros_like(master)
        return [error_of(parts.optimizer.step) for _ in range(2)]
    return [error_of(parts.step, gradients) for _ in range(2)]


def test_a_master_of_another_size(device):
    other, own = ranks.run(2, device, replaced, 16)
    assert any(e is not None and "16 elements, and the flat shard" in e[1] for e in own)
    assert any(e is not None and "failed on rank 1" in e[1] for e in other)


# ---- the first step ----


def failing_first(mesh, how):
    values = [flat.value_of((64, 128), seed=seed, special=False) for seed in range(2)]
    parts = Flat(mesh, values, "nvfp4", [[0, 1001, 64 * 128]] * 2, NEAREST)
    if parts.rank == 1 and how == "lr":
        parts.optimizer.param_groups[0]["lr"] = -1.0
    if parts.rank == 1 and how == "rounding":
        parts.optimizer.param_groups[0]["params"] = parts.masters[:1]
        other = {**parts.optimizer.param_groups[0], "params": parts.masters[1:]}
        parts.optimizer.param_groups.append({**other, "rounding": "stochastic"})
    gradients = [gradient_of((64, 128), 0, seed) for seed in range(2)]
    return [error_of(parts.step, gradients) for _ in range(2)]


@pytest.mark.parametrize(("how", "words"), [("lr", "lr -1.0"), ("rounding", "one rounding")])
def test_a_first_step_that_fails_on_one_rank(how, words, device):
    other, own = ranks.run(2, device, failing_first, how)
    assert words in own[0][1]
    assert any(e is not None and "failed on rank 1" in e[1] for e in other)
