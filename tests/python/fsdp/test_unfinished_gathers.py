"""Gathers that nobody has waited for, or that ended in an exception: weights can be replaced then
as at any other time.
"""

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard

import narrowcast as nc
import ranks
from internals import bytes_of
from models import GATHERS, one_of_each, same

TESTED_FORMATS = GATHERS
WIDTH = 256


def layers(format, device, count=2):
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(count)))
    return nc.convert(model.to(device), format)


def output_of(model, device):
    with torch.no_grad():
        return model(torch.ones(1, WIDTH, device=device))


@pytest.mark.parametrize("change", ["plain", "quantized again"])
@ranks.on(2)
def test_replaced_while_a_gather_is_under_way(mesh, format, change):
    device = mesh.device_type
    model, whole = layers(format, device), layers(format, device)
    fully_shard(model, mesh=mesh)
    output_of(model, device)
    model.reshard()
    handle = model.unshard(async_op=True)
    for one in (model, whole):
        nc.to_plain(one)
        if change == "quantized again":
            nc.convert(one, format)
    handle.wait()
    for _ in range(2):
        assert same(output_of(model, device), output_of(whole, device))
        model.reshard()


class Aside(nn.Module):
    """The loss does not depend on the second layer, which the backward gathers ahead all the same,
    and for nothing.
    """

    def __init__(self, format, device):
        super().__init__()
        self.used, self.aside = layers(format, device)

    def forward(self, x):
        return self.used(x), self.aside(x.detach()).detach()


@ranks.on(2)
def test_nothing_is_kept_of_a_gather_for_nothing(mesh, format):
    model = Aside(format, mesh.device_type)
    for module in (model.used, model.aside, model):
        fully_shard(module, mesh=mesh)
    model.used.set_modules_to_backward_prefetch([model.aside])
    x = torch.ones(1, WIDTH, device=mesh.device_type)
    model(x)[0].sum().backward()
    # A master without a dtype to change is the plain weight's memory; its bytes are nobody's.
    bytes = weakref.ref(bytes_of(model.aside.weight).buffers[0])
    nc.to_plain(model)
    gc.collect()
    assert bytes() is None


def out_of_memory(*_, **__):
    raise MemoryError


@pytest.mark.parametrize("name", one_of_each(lambda f: f.columnwise_derived))
@ranks.on(2)
def test_a_gather_of_columns_that_fails(mesh, name):
    device = mesh.device_type
    model, whole = layers(name, device, 3), layers(name, device, 3)
    fully_shard(model, mesh=mesh, shard_placement_fn=lambda _: Shard(1))
    assert same(output_of(model, device), output_of(whole, device))
    model.reshard()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "split_with_sizes_copy", out_of_memory)
        with pytest.raises(MemoryError):
            model.unshard()
    for one in (model, whole):
        nc.to_plain(one[2])
    assert same(output_of(model, device), output_of(whole, device))
