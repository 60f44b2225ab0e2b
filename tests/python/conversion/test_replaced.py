"""What becomes of parameters that nc.convert, nc.to_plain and fully_shard replace."""

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

import narrowcast as nc
import ranks
from models import one_of_each

FORMAT = "mxfp8_e4m3"


def test_a_master_has_the_memory_of_its_weight():
    head = nn.Linear(64, 64, bias=False)
    place = head.weight.data_ptr()
    assert nc.convert(head, FORMAT).weight.master.data_ptr() == place


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
