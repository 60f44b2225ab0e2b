"""A weight that stays gathered while its shard changes decodes what its gather has brought, as
plain FSDP2 computes with the old weight there: its tensor-wide scale is its own, not the shard's.
"""

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from torch.distributed.tensor import Shard

import narrowcast as nc
import ranks
from models import one_of_each, same, unit
from narrowcast.tensor import dtensors

TESTED_FORMATS = one_of_each(lambda f: (f.tensor_amax, f.amax, f.gather, f.rowwise.block))
TESTED_FORMATS = [name for name in TESTED_FORMATS if nc.format(name).tensor_amax]


def evaluation(model, x):
    """FSDP2 keeps the root's own weights gathered after a forward."""
    with torch.no_grad():
        model(x)


def unshard(model, x):
    model.unshard()


def no_resharding_after_backward(model, x):
    model.set_reshard_after_backward(False)
    model(x).sum().backward()


def training_before_evaluation(model, x):
    model(x).sum().backward()
    evaluation(model, x)


WAYS = [evaluation, unshard, no_resharding_after_backward, training_before_evaluation]


def step(model, shards, x):
    for one in shards.values():
        one.grad = dtensors.like(one, torch.ones_like(dtensors.local_of(one).value))
    nc.FusedAdam(shards.values(), lr=1.0).step()


def copy(model, shards, x):
    with torch.no_grad():
        for one in shards.values():
            one.copy_(dtensors.like(one, dtensors.local_of(one).value * 3))
    evaluation(model, x)  # the first layer's gather casts all shards


CHANGES = [step, copy]


def two_layers(mesh, format, width, **options):
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(2)))
    model = nc.convert(model, format, recompute=True).to(mesh.device_type)
    fully_shard(model[0], mesh=mesh, reshard_after_forward=True, **options)
    return fully_shard(model, mesh=mesh, **options)


def sample(mesh, width):
    return torch.randn(8, width, generator=torch.Generator().manual_seed(1)).to(mesh.device_type)


def kept(mesh, format, way, change, width, options):
    model, x = two_layers(mesh, format, width, **options), sample(mesh, width)
    shards = dict(model.named_parameters())
    globals()[way](model, x)
    weight = model[1].weight
    before = weight.dequantize()
    globals()[change](model, shards, x)
    assert model[1].weight is weight and same(weight.dequantize(), before)
    model.reshard()
    evaluation(model, x)
    whole = shards["1.weight"].full_tensor()
    after = model[1].weight.dequantize()
    assert not same(after, before)
    if not nc.format(format).is_delayed:
        assert same(after, nc.quantize(whole, format).dequantize())


@pytest.mark.parametrize("change", [one.__name__ for one in CHANGES])
@pytest.mark.parametrize("way", [one.__name__ for one in WAYS])
@pytest.mark.parametrize("world", [1, 2])
def test_a_weight_that_stays_gathered(format, device, world, way, change):
    ranks.run(world, device, kept, format, way, change, 2 * unit(format), {})


def cut_into_columns(mesh, format, change):
    options = {"shard_placement_fn": lambda parameter: Shard(1)}
    kept(mesh, format, "evaluation", change, 2 * unit(format), options)


def offloaded(mesh, format, change):
    options = {"offload_policy": CPUOffloadPolicy(pin_memory=False)}
    kept(mesh, format, "evaluation", change, 2 * unit(format), options)


@pytest.mark.parametrize("change", [one.__name__ for one in CHANGES])
@pytest.mark.parametrize("cut", [cut_into_columns, offloaded])
def test_gathers_by_pieces(format, cut, change):
    ranks.run(2, "cpu", cut, format, change)


SHARING = [name for name in TESTED_FORMATS if 40 % nc.format(name).row_step]


@pytest.mark.parametrize("change", [one.__name__ for one in CHANGES])
@pytest.mark.parametrize("name", SHARING)
@ranks.on(2)
def test_shards_that_share_blocks(mesh, name, change):
    kept(mesh, name, "evaluation", change, 80, {})  # the cut is at row 40


@ranks.on(4, "cpu")
def test_a_weight_that_a_smaller_mesh_keeps(mesh, format):
    """What a smaller mesh keeps of a weight goes with the scale that it had."""
    gradients = []
    for is_changed in (False, True):
        width = 4 * unit(format)
        torch.manual_seed(0)
        layer = nc.convert(nn.Linear(width, width, bias=False), format).to(mesh.device_type)
        model = nn.Sequential(fully_shard(layer, mesh=mesh, reshard_after_forward=2))
        fully_shard(model, mesh=mesh)
        shards, x = dict(model.named_parameters()), sample(mesh, width).requires_grad_()
        output = model(x)
        if is_changed:
            step(model, shards, x)
        output.sum().backward()
        gradients.append(x.grad)
    assert same(*gradients)
