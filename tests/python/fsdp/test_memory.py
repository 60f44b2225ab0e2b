"""Bytes, counted: what stays after conversion and sharding, and after a forward."""

import math

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

import narrowcast as nc
import ranks
from memory import SMALL, freed, grown, storages
from models import GATHERS

TESTED_FORMATS = GATHERS

WIDTH, LAYERS = 512, 3


def make(mesh, format, after):
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
    if not after:
        nc.convert(model, format, recompute=False)
    for layer in model:
        fully_shard(layer, mesh=mesh, reshard_after_forward=True)
    fully_shard(model, mesh=mesh)
    return nc.convert(model, format, recompute=False) if after else model


def shard_bytes(format, world):
    """A rank's own bytes of a weight: both usages, but not a derived columnwise."""
    f = nc.format(format)
    buffers = range(2) if f.columnwise_derived else range(4)
    shapes = [(f.buffer_shape(b, WIDTH // world, WIDTH), f.buffer_dtype(b)) for b in buffers]
    return sum(math.prod(shape) * dtype.itemsize for shape, dtype in shapes)


def weights_only(mesh, format, after):
    before = storages()
    model = make(mesh, format, after)
    master = 4 * WIDTH * WIDTH // mesh.size()
    expected = LAYERS * (master + shard_bytes(format, mesh.size()))
    assert expected <= grown(before) <= expected + SMALL
    assert all(isinstance(p.to_local(), nc.QuantizedTensor) for p in model.parameters())


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("world", [1, 2])
def test_only_the_sharded_master_is_kept(format, world, after):
    ranks.run(world, "cpu", weights_only, format, after)


def freed_after_forward(mesh, format):
    model = make(mesh, format, False)
    x = torch.randn(4, WIDTH)
    before = storages()
    with torch.no_grad():
        model(x)
        model(x)
    assert freed(before)
    held = []
    for layer in model:
        layer.register_forward_pre_hook(lambda *_: held.append(grown(before)))
    with torch.no_grad():
        model(x)
    gathered = shard_bytes(format, 1) / (1 if nc.format(format).columnwise_derived else 2)
    assert max(held) >= gathered  # the count does see what is gathered
    assert max(held) <= 3 * 2 * WIDTH * WIDTH  # one layer: payloads, buffers, FSDP2's own copy


@pytest.mark.parametrize("world", [1, 2])
def test_gathered_bytes_are_freed(format, world):
    ranks.run(world, "cpu", freed_after_forward, format)


def payload_sizes(mesh, format):
    """What the wire carries for a weight, in bits an element."""
    model = make(mesh, format, False)
    for layer in model:
        layer.unshard()
    local = model[0]._get_fsdp_state()._fsdp_param_group.fsdp_params[0]._sharded_local_tensor
    payloads, _ = local.fsdp_pre_all_gather(mesh)
    return 8 * sum(payload.numel() for payload in payloads) / local.numel()


def test_bytes_on_the_wire(format):
    f = nc.format(format)
    for bits in ranks.run(2, "cpu", payload_sizes, format):
        assert bits == f.wire_bits_per_element
    assert f.wire_bits_per_element <= f.bits_per_element


def one_allocation(mesh, format):
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
    model.to(mesh.device_type)
    full = [nc.quantize(layer.weight.detach(), format).dequantize() for layer in model]
    fully_shard(nc.convert(model, format), mesh=mesh)
    for _ in range(2):
        model.unshard()
        weights = [layer.weight for layer in model]
        memory = [weight.rowwise_data.untyped_storage() for weight in weights]
        values = [weight.dequantize() for weight in weights]
        assert len({storage.data_ptr() for storage in memory}) == 1
        assert memory[0].nbytes() >= sum(weight.rowwise_data.nbytes for weight in weights)
        model.reshard()
        assert {storage.nbytes() for storage in memory} == {0}
    return all(map(torch.equal, values, full))


def test_a_group_is_one_allocation(format, device):
    """Of all that its gathers bring, and freed as a whole."""
    assert ranks.run(2, device, one_allocation, format) == [True, True]
