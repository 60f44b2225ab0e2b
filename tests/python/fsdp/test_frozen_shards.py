"""Frozen shards: whose bytes they may be given, and ranks without rows."""

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

import narrowcast as nc
import ranks
from internals import bytes_of
from models import SHARDINGS, same, unit

TESTED_FORMATS = SHARDINGS
SPANNING = [name for name in SHARDINGS if nc.format(name).tensor_amax]


def made(format, rows, seed, device, convert=True):
    torch.manual_seed(seed)
    layers = nn.Linear(unit(format), rows, bias=False), nn.Linear(rows, 4)
    model = nn.Sequential(*layers).to(device)
    model[0].weight.requires_grad_(False)
    return nc.convert(model, format, filter="0") if convert else model


@pytest.mark.parametrize("spanning", SPANNING)
@ranks.on(2)
def test_bytes_of_another_scale(mesh, spanning):
    """Bytes under a scale of their own are no part of a weight's."""
    model = fully_shard(made(spanning, 2 * unit(spanning), 0, mesh.device_type), mesh=mesh)
    local = model[0].weight.to_local()
    own = nc.quantize((1 + mesh.get_rank()) * torch.randn(local.shape), spanning)
    before = bytes_of(local).buffer(0).clone()
    assert (local.columnwise_data is None) == nc.format(spanning).columnwise_derived
    with torch.no_grad(), pytest.raises(NotImplementedError, match="a scale spans the whole"):
        local.copy_(own.to(local.device))
    assert torch.equal(bytes_of(local).buffer(0), before)
    with torch.no_grad():
        local.copy_(local.clone())  # a part's


@pytest.mark.parametrize("spanning", [one for one in SPANNING if not nc.format(one).is_delayed])
@ranks.on(2)
def test_bytes_for_a_shard_in_training(mesh, spanning):
    """Whose value they become, under one scale for all."""
    torch.manual_seed(0)
    rows = 2 * unit(spanning)
    model = nc.convert(nn.Linear(unit(spanning), rows, bias=False), spanning).to(mesh.device_type)
    fully_shard(model, mesh=mesh)
    local = model.weight.to_local()
    value = (1 + mesh.get_rank()) * torch.randn(local.shape, device=local.device)
    with torch.no_grad():
        local.copy_(nc.quantize(value, spanning))
    masters = local.value.new_empty(rows, unit(spanning))
    torch.distributed.all_gather_into_tensor(masters, local.value.contiguous())
    whole = nc.quantize(masters, spanning)
    x = torch.eye(unit(spanning), device=mesh.device_type)
    assert same(model(x), x @ whole.dequantize().t())
