"""Frozen shards, which keep no master: whose bytes they may be given, and ranks without rows."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

import narrowcast as nc
import ranks
from internals import bytes_of
from models import SHARDINGS, same, unit

TESTED_FORMATS = SHARDINGS
WORLD = 4
SPANNING = [name for name in SHARDINGS if nc.format(name).tensor_amax]


def made(format, rows, seed, device, convert=True):
    torch.manual_seed(seed)
    layers = nn.Linear(unit(format), rows, bias=False), nn.Linear(rows, 4)
    model = nn.Sequential(*layers).to(device)
    model[0].weight.requires_grad_(False)
    return nc.convert(model, format, filter="0") if convert else model


def give_bytes(mesh, format):
    """Bytes under a scale of their own are no part of a weight's."""
    model = fully_shard(made(format, 2 * unit(format), 0, mesh.device_type), mesh=mesh)
    local = model[0].weight.to_local()
    own = nc.quantize((1 + mesh.get_rank()) * torch.randn(local.shape), format)
    before = bytes_of(local).buffer(0).clone()
    with torch.no_grad(), pytest.raises(NotImplementedError, match="a scale spans the whole"):
        local.copy_(own.to(local.device))
    assert torch.equal(bytes_of(local).buffer(0), before)
    with torch.no_grad():
        local.copy_(local.clone())  # a part's


@pytest.mark.parametrize("spanning", SPANNING)
def test_bytes_of_another_scale(spanning, device):
    ranks.run(2, device, give_bytes, spanning)


def give_bytes_to_shards_with_masters(mesh, format):
    """Whose value they become, under one scale for all."""
    torch.manual_seed(0)
    rows = 2 * unit(format)
    model = nc.convert(nn.Linear(unit(format), rows, bias=False), format).to(mesh.device_type)
    fully_shard(model, mesh=mesh)
    local = model.weight.to_local()
    value = (1 + mesh.get_rank()) * torch.randn(local.shape, device=local.device)
    with torch.no_grad():
        local.copy_(nc.quantize(value, format))
    masters = local.master.new_empty(rows, unit(format))
    torch.distributed.all_gather_into_tensor(masters, local.master.contiguous())
    whole = nc.quantize(masters, format)
    x = torch.eye(unit(format), device=mesh.device_type)
    assert same(model(x), x @ whole.dequantize().t())


@pytest.mark.parametrize("spanning", [one for one in SPANNING if not nc.format(one).is_delayed])
def test_bytes_for_shards_with_masters(spanning, device):
    ranks.run(2, device, give_bytes_to_shards_with_masters, spanning)


def load_whole(mesh, format, rows):
    """A full state dict, on a mesh of which ranks have no rows; converted before or after."""
    device = mesh.device_type
    saved, x = made(format, rows, 1, device), torch.randn(3, unit(format), device=device)
    torch.distributed.broadcast(x, 0)
    for is_sent in (False, True):
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=is_sent)
        model = fully_shard(made(format, rows, 0, device), mesh=mesh)
        state = saved.state_dict() if mesh.get_rank() == 0 or not is_sent else {}
        set_model_state_dict(model, state, options=options)
        assert same(model(x), saved(x))
    if nc.format(format).is_delayed:
        return
    late = fully_shard(made(format, rows, 1, device, convert=False), mesh=mesh)
    nc.convert(late, format, filter="0")
    assert same(late(x), saved(x))


@pytest.mark.parametrize("rows", [2, 5])
def test_ranks_without_rows(format, device, rows):
    if not nc.fits(format, (rows, unit(format)), WORLD):
        pytest.skip("cannot be cut so")
    ranks.run(WORLD, device, load_whole, format, rows)


def load_into_both(mesh, format, rows):
    """Cut by tensor parallelism and by FSDP2 within blocks: an error that names a way out."""
    device = mesh.device_type
    both = dist.init_device_mesh(device, (2, 2), mesh_dim_names=("dp", "tp"))
    saved, model = (made(format, rows, seed, device) for seed in (1, 0))
    parallelize_module(model, both["tp"], {"0": ColwiseParallel()})
    fully_shard(model, mesh=both["dp"])
    for is_sent in (False, True):
        state = saved.state_dict() if mesh.get_rank() == 0 or not is_sent else {}
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=is_sent)
        with pytest.raises(ValueError, match=r"^0\.weight: a mesh of 2 dimensions.*trainable=True"):
            set_model_state_dict(model, state, options=options)


def test_weights_that_two_dimensions_cut_within_blocks(device):
    ranks.run(WORLD, device, load_into_both, "mxfp4", 64)


def load_beside_one(mesh, format, rows):
    """A dimension of one rank cuts nothing: what the other cuts within blocks can be loaded."""
    device = mesh.device_type
    both = dist.init_device_mesh(device, (WORLD, 1), mesh_dim_names=("dp", "tp"))
    saved, x = made(format, rows, 1, device), torch.randn(3, unit(format), device=device)
    for is_sent in (False, True):
        model = made(format, rows, 0, device)
        parallelize_module(model, both["tp"], {"0": ColwiseParallel(use_local_output=False)})
        fully_shard(model[0], mesh=both["dp"])
        state = saved.state_dict() if mesh.get_rank() == 0 or not is_sent else {}
        options = StateDictOptions(
            full_state_dict=True, broadcast_from_rank0=is_sent, strict=not is_sent
        )
        set_model_state_dict(model, state, options=options)
        assert same(model[0](x).full_tensor(), saved[0](x))


def test_a_dimension_of_one_rank_cuts_nothing(device):
    ranks.run(WORLD, device, load_beside_one, "mxfp4", 64)
