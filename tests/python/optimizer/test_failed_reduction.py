"""A reduction of amaxes that fails within a step: values are new, and the next use of the weights
makes their bytes.
"""

import pytest
import torch

import narrowcast as nc
import ranks
from internals import is_stale
from models import SHARDINGS, assert_same, build, loss_of, same, shard
from narrowcast.ranks import reduction
from weights import quantized

TESTED_FORMATS = [name for name in SHARDINGS if nc.format(name).tensor_amax]


def local_weights(model):
    named = ((name, p.to_local()) for name, p in model.named_parameters())
    return {name: local for name, local in named if isinstance(local, nc.MasterWeight)}


class Broken:
    """Reductions fail, after some good ones, which are counted."""

    present = None

    def __init__(self, good=0):
        self.good, self.count = good, 0

    def __enter__(self):
        Broken.present = self
        return self

    def __exit__(self, *error):
        Broken.present = None

    def ask(self):
        self.count += 1
        if self.count > self.good:
            raise ConnectionError("no network")


def watched(all_reduce):
    """A function like reduction._all_reduce, whose reductions fail within a Broken."""

    def watched_all_reduce(*arguments):
        begin = all_reduce(*arguments)

        def reduce():
            if Broken.present:
                Broken.present.ask()
            return begin()

        return reduce

    return watched_all_reduce


# When a rank loads this file, before any of its tests: models keep the reductions that their first
# forward has made.
reduction._all_reduce = watched(reduction._all_reduce)


def failed_step(mesh, format, rounding="nearest"):
    """Two models after two steps; the last reduction of one has failed."""
    device = mesh.device_type
    trained = []
    for broken in (True, False):
        model = shard(build(format, device), mesh, reshard_after_forward=True)
        optimizer = nc.FusedAdam(model.parameters(), lr=1e-2, rounding=rounding)
        reductions = Broken(good=100)
        for step in range(2):
            loss_of(model, step, device).backward()
            with reductions:
                if reductions.good < 100:
                    with pytest.raises(ConnectionError):
                        optimizer.step()
                else:
                    optimizer.step()
            if broken:  # the last one of the next step; others may come before the update
                reductions = Broken(reductions.count - 1)
            optimizer.zero_grad()
        trained.append((model, optimizer))
    return trained


@pytest.mark.parametrize("world", [2, 4])
@ranks.on("world")
def test_the_next_forward(mesh, format):
    """Values and moments are those of a step, and the next forward's loss is that of new bytes."""
    (model, optimizer), (expected, other) = failed_step(mesh, format)
    weights, truth = local_weights(model), local_weights(expected)
    for name, weight in weights.items():
        assert is_stale(weight), name
        assert same(weight.value, truth[name].value), name
        with pytest.raises(ValueError, match="its bytes wait for the next gather"):
            quantized(weight).dequantize()
    for p, q in zip(model.parameters(), expected.parameters(), strict=True):
        state, state2 = optimizer.state[p], other.state[q]
        for key in ("step", "exp_avg", "exp_avg_sq"):
            assert same(*(getattr(one[key], "_local_tensor", one[key]) for one in (state, state2)))
    with torch.no_grad():
        loss = loss_of(model, 5, mesh.device_type)
    whole = build(format)
    masters = {name: p.full_tensor().cpu() for name, p in model.named_parameters()}
    with torch.no_grad():
        for name, p in whole.named_parameters():
            p.copy_(masters[name])
        assert same(loss, loss_of(whole.to(mesh.device_type), 5, mesh.device_type))
    for name, weight in weights.items():
        if quantized(weight).history is None:  # else the multiplier begins anew
            assert_same(weight, truth[name], what=name)


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@ranks.on(2)
def test_the_next_step(mesh, format, rounding):
    """Steps without a forward between: the step makes the bytes that a failure left."""
    device = mesh.device_type
    trained = failed_step(mesh, format, rounding)
    for model, optimizer in trained:
        for p in model.parameters():
            p.grad = torch.full_like(p, 0.01, dtype=torch.float32)
        optimizer.step()
    (model, _), (expected, _) = trained
    for name, weight in local_weights(model).items():
        truth = local_weights(expected)[name]
        assert not is_stale(weight)
        assert same(weight.value, truth.value), name
        if quantized(weight).history is None:
            assert_same(weight, truth, what=name)
        else:
            assert same(quantized(weight).history[2:3], quantized(truth).history[2:3]), name
    with torch.no_grad():
        losses = [loss_of(model, 5, device) for model, _ in trained]
    if quantized(model.head.weight.to_local()).history is None:
        assert same(*losses)


@ranks.on(2)
def test_a_failed_forward(mesh, format):
    """A reduction that fails in a forward leaves the weights as they were: to be made."""
    device = mesh.device_type
    model = shard(build(format, device), mesh, reshard_after_forward=True)
    with torch.no_grad():
        loss = loss_of(model, 0, device)
        weights = local_weights(model)
        weights["head.weight"].copy_(weights["head.weight"].value * 2)
        with Broken(), pytest.raises(ConnectionError):
            loss_of(model, 0, device)
        assert is_stale(weights["head.weight"])
        assert not same(loss_of(model, 0, device), loss)
        assert not is_stale(weights["head.weight"])


@pytest.mark.parametrize("name", [f for f in TESTED_FORMATS if nc.format(f).is_delayed])
@ranks.on(2)
def test_a_step_can_be_made_again(mesh, name):
    """A step first makes the bytes of what was written, as the history goes on with them. Where
    that fails nothing has changed, and the step can be made again.
    """
    device = mesh.device_type
    losses = []
    for broken in (True, False):
        model = shard(build(name, device), mesh, reshard_after_forward=True)
        optimizer = nc.FusedAdam(model.parameters(), lr=1e-2)
        loss_of(model, 0, device).backward()
        with torch.no_grad():
            model.head.weight.copy_(2 * model.head.weight)
        if broken:
            with Broken(), pytest.raises(ConnectionError):
                optimizer.step()
        optimizer.step()
        with torch.no_grad():
            losses.append(loss_of(model, 1, device))
    assert same(*losses)
