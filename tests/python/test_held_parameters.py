"""An optimizer that was made before nc.convert or fully_shard holds parameters that the model has
no more: it says so.
"""

import gc
import warnings

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

import narrowcast as nc
import ranks
from models import one_of_each

FORMAT = "mxfp8_e4m3"


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD, nc.FusedAdam])
def test_convert_after_the_optimizer(optimizer):
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    held = optimizer(model.parameters(), lr=1e-2)
    words = rf"0\.weight and 1 more, which an optimizer \({optimizer.__name__}\).*after nc\.convert"
    with pytest.warns(RuntimeWarning, match=words) as seen:
        nc.convert(model, FORMAT)
    assert seen[0].filename == __file__
    assert held.param_groups


def test_no_warning():
    """Of optimizers that hold nothing that was replaced, or are gone."""
    model, other = nn.Linear(64, 64), nn.Linear(64, 64)
    held = torch.optim.SGD([*other.parameters(), model.bias], lr=1e-2)
    gone = torch.optim.SGD(model.parameters(), lr=1e-2)
    del gone
    gc.collect()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nc.convert(model, FORMAT)
    assert held.param_groups


def test_nothing_is_looked_for_where_nobody_holds_a_weight(monkeypatch):
    """Looking takes as long as the process has objects."""
    monkeypatch.setattr(gc, "get_objects", lambda: pytest.fail("all objects were looked at"))
    nc.convert(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)), FORMAT)


def shard_after(mesh, format):
    model = nc.convert(nn.Sequential(nn.Linear(64, 256, bias=False)), format)
    optimizer = nc.FusedAdam(model.parameters(), lr=1e-2)
    fully_shard(model, mesh=mesh)
    model(torch.ones(2, 64)).sum().backward()
    optimizer.step()


@pytest.mark.parametrize("name", one_of_each(lambda f: f.tensor_amax))
@pytest.mark.parametrize("world", [1, 2])
def test_fully_shard_after_the_optimizer(name, world):
    for kind, message in ranks.errors(world, "cpu", shard_after, name):
        assert kind == "RuntimeError"
        assert "0.weight: fully_shard has replaced this weight" in message
        assert "after fully_shard" in message


def convert_sharded(mesh, format):
    """Sharded parameters stay the model's, whoever holds them."""
    model = fully_shard(nn.Sequential(nn.Linear(64, 256, bias=False)), mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nc.convert(model, format)
    assert optimizer.param_groups[0]["params"][0] is model[0].weight


def test_converting_shards():
    ranks.run(2, "cpu", convert_sharded, FORMAT)
