"""state_dict, load_state_dict and torch.save of sharded models and optimizers themselves: what is
loaded is what was saved, to the bit.
"""

import io

import pytest
import torch
from torch.distributed.fsdp import fully_shard

import narrowcast as nc
import ranks
from models import (
    assert_same,
    build,
    loss_of,
    one_of_each,
    same,
    shard,
    uneven_rows,
)
from sharded_states import assert_equal, assert_equal_state, go_on, trained

TESTED_FORMATS = one_of_each(lambda f: (f.gather, f.tensor_amax, f.amax))


def shards_changed(mesh, format):
    """Where ranks set other values after a load, all make new bytes."""
    device = mesh.device_type
    _, optimizer = trained(mesh, format)
    other, other_optimizer = trained(mesh, format, seed=3)
    other_optimizer.load_state_dict(optimizer.state_dict())
    local = other.blocks[0].up.weight.to_local()
    with torch.no_grad():
        local.copy_(torch.full_like(local.master, 6.0 + mesh.get_rank()))
        loss_of(other, 9, device)
    assert local.amax is None or local.amax.tolist() == [7.0]


def test_shards_changed_after_a_load(format, device):
    ranks.run(2, device, shards_changed, format)


def plain_methods(mesh, format):
    """state_dict and load_state_dict themselves, before and after the first forward."""
    device = mesh.device_type
    model, optimizer = trained(mesh, format)
    weights, state = model.state_dict(), optimizer.state_dict()
    late = trained(mesh, format, seed=3)
    early = shard(build(format, device, seed=4), mesh)
    early = early, nc.FusedAdam(early.parameters(), lr=1e-2)
    for other, other_optimizer in (early, late):
        other.load_state_dict(weights)
        other_optimizer.load_state_dict(state)
        assert_equal_state(model, optimizer, other, other_optimizer)
        with torch.no_grad():
            loss_of(other, 9, device)
        assert_equal(model, other)
    go_on([early, late], device)


@pytest.mark.parametrize("world", [1, 2])
def test_state_dict_methods(format, device, world):
    ranks.run(world, device, plain_methods, format)


def through_a_file(mesh, format):
    """torch.save of a rank's own weights, and torch.load with weights_only=True."""
    model, _ = trained(mesh, format)
    file = io.BytesIO()
    model.reshard()
    local = {name: p.detach().to_local() for name, p in model.named_parameters()}
    assert any(isinstance(value, nc.QuantizedTensor) for value in local.values())
    torch.save(local, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    for name, value in local.items():
        if isinstance(value, nc.QuantizedTensor):
            assert same(value.master, loaded[name].master)
            assert_same(value, loaded[name], what=name)


def test_saved_shards(format):
    ranks.run(2, "cpu", through_a_file, format)


def load_uneven(mesh, format, rows):
    """A short shard is made anew at every load; the optimizer follows."""
    models = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(64, rows, bias=False))
        fully_shard(nc.convert(model, format), mesh=mesh)
        models.append((model, nc.FusedAdam(model.parameters(), lr=1e-2)))
    for step in range(3):
        for model, optimizer in models:
            x = torch.randn(8, 64, generator=torch.Generator().manual_seed(step))
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        (model, optimizer), (other, other_optimizer) = models
        other.load_state_dict(model.state_dict())
        other_optimizer.load_state_dict(optimizer.state_dict())
        with torch.no_grad():
            assert same(model(x), other(x))
        assert_equal_state(*models[0], *models[1])


def test_loads_into_uneven_shards(format):
    ranks.run(3, "cpu", load_uneven, format, uneven_rows(format))
