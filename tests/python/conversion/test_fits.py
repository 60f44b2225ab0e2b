"""nc.fits and nc.convert(mesh=): over how many ranks weights can be cut, before fully_shard."""

import dataclasses

import pytest
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import narrowcast as nc
import ranks
from narrowcast.fsdp import sharding

STEPS = sorted({nc.format(name).shard_row_step for name in nc.formats()})
COARSE = max(nc.formats(), key=lambda name: nc.format(name).shard_row_step)
STEP = nc.format(COARSE).shard_row_step


def delayed(name):
    """A format with blocks whose scale is known before the step: its shards share nothing."""
    return dataclasses.replace(nc.format(name), amax="delayed")


def is_cut(name, rows, world):
    return sharding.why_not(delayed(name), (rows, 64), world) is None


@pytest.mark.parametrize("step", STEPS)
def test_as_fully_shard_decides(step):
    """Of every number of ranks that fits, and of others; the nearest that fit are the nearest."""
    name = next(name for name in nc.formats() if nc.format(name).shard_row_step == step)
    rows = 5 * step + 2 * (step > 1)
    good = [world for world in range(1, rows + 3) if is_cut(name, rows, world)]
    for world in sorted({*good, *range(1, rows + 3, -(-step // 8))}):
        fit = nc.fits((rows, 64), delayed(name), world)
        assert bool(fit) == (world in good)
        fit_with_reduction = nc.fits((rows, 64), name, world)
        assert fit_with_reduction
        assert fit_with_reduction.shared == (() if fit else (f"{rows}x64",))
        if not fit:
            below, above = [w for w in good if w < world], [w for w in good if w > world]
            assert fit.nearest == (*below[-1:], *above[:1])
            assert f"{rows}x64: a shard would have" in str(fit)
            assert f"multiples of {step} rows" in fit.reasons[f"{rows}x64"]


def test_a_vector():
    """It has one row, of which no other number of rows makes more."""
    format = next(name for name in nc.formats() if nc.format(name).group == 1)
    fit = nc.fits((512,), format, 2)
    assert str(fit).startswith("cannot be cut over 2 ranks: 512: a vector is one row of a matrix")
    assert "rows (" not in str(fit)
    assert fit.nearest == (1,)


def layers():
    return nn.Sequential(nn.Linear(64, 8 * STEP), nn.ReLU(), nn.Linear(8 * STEP, 6 * STEP))


def test_a_model():
    model = layers()
    assert nc.fits(model, COARSE, 2)
    assert str(nc.fits(model, COARSE, 2)) == "can be cut over 2 ranks"
    shared = nc.fits(model, COARSE, 4)
    assert shared
    assert str(shared) == "can be cut over 4 ranks; shards share blocks of 2.weight"
    fit = nc.fits(model, delayed(COARSE), 4)
    assert not fit
    assert list(fit.reasons) == ["2.weight"]
    assert fit.nearest == (3,) if nc.fits(model, delayed(COARSE), 3) else (2,)
    assert nc.fits(model, delayed(COARSE), 4, filter="0")
    assert nc.fits(nc.convert(model, COARSE), COARSE, 2)


def test_what_a_format_cannot_hold():
    name = next(name for name in nc.formats() if nc.format(name).group > 1)
    fit = nc.fits((64, 63), name, 1)
    assert not fit
    assert "cannot hold" in str(fit)
    assert fit.nearest == ()


@pytest.mark.parametrize(
    ("what", "ranks", "error", "words"),
    [
        ((64, 64), 0, ValueError, "at least 1 rank"),
        ((), 2, ValueError, "positive numbers"),
        (nn.ReLU(), 2, ValueError, "chooses no module"),
    ],
)
def test_wrong_arguments(what, ranks, error, words):
    with pytest.raises(error, match=words):
        nc.fits(what, COARSE, ranks)


def test_refused_where_the_mesh_is_known():
    model = layers()
    with pytest.raises(ValueError, match=r"cannot be cut over 4 ranks: 2\.weight.*Ranks that do"):
        nc.convert(model, delayed(COARSE), mesh=4)
    assert type(model[0].weight) is nn.Parameter
    nc.convert(model, COARSE, mesh=4)


def odd_layers():
    return nn.Sequential(nn.Linear(64, 8 * STEP), nn.ReLU(), nn.Linear(8 * STEP, 3 * STEP))


@ranks.on(2, "cpu")
def test_on_a_mesh(mesh, format=COARSE):
    """FSDP2 cuts over the last dimension of a mesh of two. What lies in shards by now has been
    checked by itself.
    """
    both = dist.init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicas", "shards"))
    nc.convert(odd_layers(), format, mesh=mesh)
    nc.convert(odd_layers(), delayed(format), mesh=both)
    nc.convert(fully_shard(odd_layers(), mesh=both["shards"]), format, mesh=mesh)
    with pytest.raises(ValueError, match="cannot be cut over 2 ranks"):
        nc.convert(odd_layers(), delayed(format), mesh=mesh)
