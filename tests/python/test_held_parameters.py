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


def test_a_module_outside_that_shares_a_weight():
    """They are two parameters from then on, in memory of their own."""
    embedding, head = nn.Embedding(64, 64), nn.Linear(64, 64, bias=False)
    embedding.weight = head.weight
    with pytest.warns(RuntimeWarning, match=r"weight, which a module outside .*\(Embedding\)"):
        nc.convert(head, FORMAT)
    before = embedding.weight.detach().clone()
    head(torch.ones(2, 64)).sum().backward()
    nc.FusedAdam(head.parameters(), lr=1e-2).step()
    assert torch.equal(embedding.weight, before)
    assert not torch.equal(head.weight.master, before)


def test_a_weight_that_nobody_shares_keeps_its_memory():
    head = nn.Linear(64, 64, bias=False)
    place = head.weight.data_ptr()
    assert nc.convert(head, FORMAT).weight.master.data_ptr() == place


def test_an_optimizer_that_holds_a_weight_tied_by_storage():
    """The memory of its parameter is not taken as the master."""
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    model[1].weight.data = model[0].weight.data
    held = torch.optim.SGD(model.parameters(), lr=1e-2)
    with pytest.warns(RuntimeWarning, match=r"0\.weight, which an optimizer \(SGD\)"):
        nc.convert(model, FORMAT)
    old = held.param_groups[0]["params"][0]
    assert model[0].weight.master.data_ptr() != old.data_ptr()


def test_to_plain_after_the_optimizer():
    model = nc.convert(nn.Sequential(nn.Linear(64, 64)), FORMAT)
    held = nc.FusedAdam(model.parameters())
    words = r"nc\.to_plain has replaced 0\.weight, which an optimizer \(FusedAdam\)"
    with pytest.warns(RuntimeWarning, match=words) as seen:
        nc.to_plain(model)
    assert seen[0].filename == __file__
    assert held.param_groups


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_hooks_and_gradients_go_along(dtype):
    """To the quantized parameter and back; handles that remove hooks still do."""
    layer, calls = nn.Linear(64, 64, bias=False, dtype=dtype), []
    handle = layer.weight.register_hook(lambda gradient: gradient * 0)
    layer.weight.register_post_accumulate_grad_hook(lambda p: calls.append(p is layer.weight))
    x = torch.randn(4, 64, dtype=dtype)

    def gradient():
        layer.weight.grad = None
        layer(x).sum().backward()
        return layer.weight.grad

    gradient()
    for change in (lambda: nc.convert(layer, FORMAT), lambda: nc.to_plain(layer)):
        layer.weight.grad = before = torch.ones_like(layer.weight.grad)
        change()
        assert layer.weight.grad is before
        assert not gradient().any()
    handle.remove()
    assert gradient().any()
    assert calls == [True] * 4


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
    """Sharded parameters stay the model's, whoever holds them: nobody is looked for."""
    model = fully_shard(nn.Sequential(nn.Linear(64, 256, bias=False)), mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("error")
        patch.setattr(gc, "get_objects", lambda: pytest.fail("all objects were looked at"))
        nc.convert(model, format)
    assert optimizer.param_groups[0]["params"][0] is model[0].weight


def test_converting_shards():
    ranks.run(2, "cpu", convert_sharded, FORMAT)


def test_nothing_is_looked_for_on_the_way_back(monkeypatch):
    model = nc.convert(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)), FORMAT)
    monkeypatch.setattr(gc, "get_objects", lambda: pytest.fail("all objects were looked at"))
    nc.to_plain(model)
