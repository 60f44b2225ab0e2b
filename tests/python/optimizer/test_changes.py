"""What makes plans over shards look at them again (core/changes.cpp), and what not."""

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

import narrowcast as nc
import ranks
from internals import store_of
from models import GATHERS, unit
from narrowcast import _C
from weights import quantized

FORMAT = "mxfp8_e4m3"
TESTED_FORMATS = GATHERS


def weight() -> nn.Parameter:
    return nc.convert(nn.Linear(64, 64, bias=False), FORMAT).weight


def write_to_the_value(weight):
    weight.value[0] = 1.0


def fill(weight):
    nn.init.constant_(weight, 2.0)


def assign_data(weight):
    weight.data = torch.ones(64, 64)


@pytest.mark.parametrize(
    "change", [write_to_the_value, fill, assign_data], ids=lambda one: one.__name__
)
def test_a_change_is_noticed(change):
    one = weight()
    watch = _C.Watch([store_of(one)])
    assert watch.is_quiet
    with torch.no_grad():
        change(one)
    assert not watch.is_quiet
    assert _C.Watch([store_of(one)]).is_quiet


def test_reading_changes_nothing():
    one, x = weight(), torch.ones(2, 64)
    watch = _C.Watch([store_of(one)])
    nn.functional.linear(x, one).sum().backward()
    _ = quantized(one).dequantize(), one.value.sum(), one.detach(), one.t(), one[:32]
    assert watch.is_quiet


@ranks.on(2)
def test_steps_look_at_nothing_again(mesh, format):
    """Once everything has been looked at, steps look at nothing again."""
    torch.manual_seed(0)
    width = mesh.size() * unit(format)
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(3)))
    nc.convert(model, format).to(mesh.device_type)
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = nc.FusedAdam(model.parameters(), lr=1e-2)
    looks, watch = [], _C.Watch
    _C.Watch = lambda stores: looks.append(stores) or watch(stores)
    try:
        for step in range(5):
            if step == 2:
                assert looks
                looks.clear()
            model(torch.ones(4, width, device=mesh.device_type)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    finally:
        _C.Watch = watch
    assert looks == []


class Two(nn.Module):
    def __init__(self, format):
        super().__init__()
        width = 2 * unit(format)
        self.a, self.b = (nn.Linear(width, width, bias=False) for _ in range(2))

    def forward(self, x, with_b=True):
        return self.b(self.a(x)) if with_b else self.a(x)


def two(mesh, format, apart=True):
    torch.manual_seed(0)
    model = nc.convert(Two(format), format).to(mesh.device_type)
    for layer in (model.a, model.b) if apart else ():
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def output_of(model, *options):
    x = torch.ones(2, model.a.in_features, device=next(model.parameters()).device)
    with torch.no_grad():
        y = model(x, *options)
    for module in (model.a, model.b, model):
        getattr(module, "reshard", lambda: None)()
    return y


def triple(model):
    """All ranks write to a weight."""
    local = model.b.weight.to_local()
    with torch.no_grad():
        local.copy_(3 * local.value)


@ranks.on(2)
def test_shards_that_were_never_gathered(mesh, format):
    """Other shards, written to before, take the place of some that no forward has used."""
    model, other, expected = (two(mesh, format) for _ in range(3))
    triple(other)
    triple(expected)
    for _ in range(2):
        output_of(model, False)
    model.b.load_state_dict(other.b.state_dict(keep_vars=True), assign=True)
    for _ in range(2):
        assert torch.equal(output_of(model), output_of(expected))


@ranks.on(2)
def test_a_shard_that_is_swapped(mesh, format):
    """FSDP2 is not told, and its next gathers have the new shard."""
    model, other, expected = (two(mesh, format, apart=False) for _ in range(3))
    triple(other)
    triple(expected)
    for one in (model, expected):
        output_of(one)
    torch.utils.swap_tensors(model.b.weight, other.b.weight)
    for _ in range(2):
        assert torch.equal(output_of(model), output_of(expected))
