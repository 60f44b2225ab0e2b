"""What is written to a weight between a forward and its backward takes effect with the next
forward, on however many ranks: the backward has the bytes of its forward, though gathered anew.
"""

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

import narrowcast as nc
import ranks
from models import one_of_each, same
from narrowcast.tensor import dtensors

WIDTH = 64  # rows that three ranks cut within blocks
FORMATS = one_of_each(lambda f: (f.tensor_amax, f.amax, f.gather, f.rowwise.block))


def by_copy(layer, value):
    layer.weight.copy_(dtensors.like(layer.weight, value))


def by_state_dict(layer, value):
    dtensors.local_of(layer.state_dict()["weight"]).copy_(value)


def by_adding(layer, value):
    layer.weight += dtensors.like(layer.weight, value)


WRITES = ["by_copy", "by_state_dict", "by_adding"]
# Every write on some number of ranks, and every number of ranks after some write, of each format.
CASES = [
    (world, name, WRITES[(place + world) % 3])
    for place, name in enumerate(FORMATS)
    for world in (1, 2, 3)
]


def gradient_of(layer, mesh, write=None):
    """Of an input, after a forward, a write and the forward's backward; and the forward's value."""
    x = torch.ones(4, WIDTH, device=mesh.device_type, requires_grad=True)
    output = layer(x)
    layer.reshard()
    if write is not None:
        generator = torch.Generator().manual_seed(mesh.get_local_rank())
        value = torch.randn(layer.weight.to_local().shape, generator=generator)
        with torch.no_grad():
            write(layer, value.to(mesh.device_type))
    output.sum().backward()
    return x.grad, output.detach()


@pytest.mark.parametrize(("world", "name", "write"), CASES)
@ranks.on("world")
def test_a_backward_has_the_bytes_of_its_forward(mesh, name, write):
    torch.manual_seed(0)
    layer = nc.convert(nn.Linear(WIDTH, WIDTH, bias=False), name).to(mesh.device_type)
    fully_shard(layer, mesh=mesh)
    before, old = gradient_of(layer, mesh)
    assert same(gradient_of(layer, mesh, globals()[write])[0], before)
    after, new = gradient_of(layer, mesh)
    assert not same(after, before) and not same(new, old)
    whole = layer.weight.full_tensor()
    layer.unshard()
    assert same(layer.weight.dequantize(), nc.quantize(whole, name).dequantize())
