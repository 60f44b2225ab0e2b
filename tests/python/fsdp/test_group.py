"""The weights that fully_shard gathers together: what ranks pack travels in one payload for all
formats; if some are made plain or quantized, what is gathered of the others stays theirs.
"""

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

import narrowcast as nc
import ranks
from internals import store_of, view_of
from models import BUFFERS, GATHERS, same, unit
from narrowcast.fsdp import torch_names
from weights import quantized

TESTED_FORMATS = GATHERS


def layers(format, count):
    torch.manual_seed(0)
    width = 2 * unit(format)
    return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(count)))


def output_of(model, device):
    with torch.no_grad():
        return model(torch.ones(1, model[0].in_features, device=device))


def changed(mesh, format, count, place, resharded):
    """One layer of a group that has been gathered becomes plain, and is quantized again."""
    device = mesh.device_type
    model = nc.convert(layers(format, count).to(device), format)
    whole = nc.convert(layers(format, count).to(device), format)
    fully_shard(model, mesh=mesh)
    assert same(output_of(model, device), output_of(whole, device))
    for change in (nc.to_plain, lambda layer: nc.convert(layer, format)):
        if resharded:
            model.reshard()
        for one in (model, whole):
            change(one[place])
        for _ in range(2):
            assert same(output_of(model, device), output_of(whole, device))
            model.reshard()
        kinds = [type(layer.weight.to_local()) for layer in model]
        assert kinds == [type(layer.weight.data) for layer in whole]


@pytest.mark.parametrize("resharded", [False, True])
def test_a_part_of_a_group_changes(format, device, resharded):
    for count, place in ((2, 0), (3, 0), (3, 1)):
        ranks.run(2, device, changed, format, count, place, resharded)


@ranks.on(2)
def test_nothing_is_kept_of_replaced_shards(mesh, format):
    model = nc.convert(layers(format, 2).to(mesh.device_type), format)
    fully_shard(model, mesh=mesh)
    output_of(model, mesh.device_type)
    model.reshard()
    stores = [store_of(layer.weight) for layer in model]
    # A master without a dtype to change is the plain weight's memory; its bytes are nobody's.
    bytes = [weakref.ref(store.bytes.buffers[0]) for store in stores]
    del stores
    nc.to_plain(model)
    gc.collect()
    assert all(one() is None for one in bytes)


SIZE = 512


FORMATS = [None, *nc.formats(), None, *nc.formats()]


def model_of(recompute):
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(SIZE, SIZE, bias=False) for _ in FORMATS))
    for layer, format in zip(model, FORMATS, strict=True):
        if format is not None:
            nc.convert(layer, format, recompute=recompute)
    return model


def gathered(mesh, recompute, device):
    model, whole = model_of(recompute).to(device), model_of(recompute).to(device)
    fully_shard(model, mesh=mesh)
    for _ in range(2):
        model.unshard()
        for layer, other in zip(model, whole, strict=True):
            if not isinstance(other.weight, nc.MasterWeight):
                assert torch.equal(layer.weight, other.weight)
                continue
            assert view_of(layer.weight).usages  # what has come equals a direct quantization
            for name in BUFFERS:
                value, expected = (getattr(quantized(one.weight), name) for one in (layer, other))
                assert value is None or torch.equal(value, expected), name
        model.reshard()
    managed = (torch_names.managed(layer.weight)[1] for layer in model)
    return [len(parameter.all_gather_outputs) for parameter in managed]


@pytest.mark.parametrize(("world", "recompute"), [(2, True), (4, False)])
def test_every_format_in_one_group(device, world, recompute):
    for slots in ranks.run(world, device, gathered, recompute, device):
        first, second = slots[: len(FORMATS) // 2], slots[len(FORMATS) // 2 :]
        assert sum(slots) < 2 * len(FORMATS)
        assert sum(first) == sum(second) + 1  # that of all
