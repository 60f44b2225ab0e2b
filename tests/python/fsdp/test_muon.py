"""nc.optim.Muon under fully_shard: every byte and every momentum is that of one process."""

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

import narrowcast as nc
import ranks
from cut_weights import cut_into_columns
from models import SHARDINGS, build, local_rows, same, shard, train
from narrowcast.muon import exchange
from resuming import resume, states_of
from weights import value_of

TESTED_FORMATS = SHARDINGS


def muon(*models, **options):
    options = {"lr": 0.02, "adamw": {"lr": 1e-2}, **options}
    return [nc.optim.Muon(one.named_parameters(), **options) for one in models]


def give(model, whole, mesh, generator):
    """Gradients of integers, which a mean over three ranks does not round."""
    for p, w in zip(model.parameters(), whole.parameters(), strict=True):
        gradient = torch.randint(-8, 9, w.shape, generator=generator)
        w.grad = gradient.to(w.device, torch.float32)
        p.grad = distribute_tensor(w.grad, mesh, p.placements)


def assert_alike(model, optimizer, whole, whole_optimizer, mesh):
    for p, w in zip(model.parameters(), whole.parameters(), strict=True):
        assert same(value_of(p), local_rows(value_of(w), p, mesh))
        for key, value in whole_optimizer.state[w].items():
            if isinstance(optimizer.state[p][key], DTensor):
                assert same(optimizer.state[p][key].to_local(), local_rows(value, p, mesh)), key


@pytest.mark.parametrize("world", [2, 3])
@ranks.on("world")
def test_sharded_is_whole(mesh, format):
    """On three ranks cuts divide blocks. The second step travels in many buckets."""
    whole, model = (build(format, mesh.device_type) for _ in range(2))
    shard(model, mesh)
    optimizer, whole_optimizer = muon(model, whole, split=lambda _, p: 2 if len(p) == 256 else None)
    generator = torch.Generator().manual_seed(0)
    limit = exchange.BUCKET_BYTES
    for size in (limit, 1):
        exchange.BUCKET_BYTES = size
        optimizer.forget_tables()
        give(model, whole, mesh, generator)
        optimizer.step()
        whole_optimizer.step()
    exchange.BUCKET_BYTES = limit
    assert {g["algorithm"] for g in optimizer.param_groups} == {"muon", "adamw"}
    assert_alike(model, optimizer, whole, whole_optimizer, mesh)


@ranks.on(2)
def test_losses(mesh, device):
    """Of a training, with a gather after each step: as where ranks have whole matrices."""
    model, other = (build(TESTED_FORMATS[0], device) for _ in range(2))
    shard(model, mesh)
    alone = init_device_mesh(device, (2, 1), mesh_dim_names=("each", "alone"))["alone"]
    shard(other, alone)
    optimizers = muon(model, other)
    losses = [
        train(one, optimizer, 3, device)
        for one, optimizer in zip((model, other), optimizers, strict=True)
    ]
    assert losses[0] == losses[1]


@ranks.on(2)
def test_experts_stay_where_they_are(mesh, device):
    torch.manual_seed(0)
    whole, model = nn.Module(), nn.Module()
    for one in (whole, model):
        torch.manual_seed(0)
        one.experts = nn.Parameter(torch.randn(5, 32, 16, device=device))
        one.forward = lambda x: x
    fully_shard(model, mesh=mesh)
    optimizer, whole_optimizer = muon(model, whole, filter=lambda *_: True)
    give(model, whole, mesh, torch.Generator().manual_seed(0))
    optimizer.step()
    whole_optimizer.step()
    assert same(model.experts.to_local(), local_rows(whole.experts, model.experts, mesh))


@ranks.on(2)
def test_columns_are_refused(mesh):
    (optimizer,) = muon(cut_into_columns(mesh, 64, 32))
    with pytest.raises(NotImplementedError, match=r"weight: Muon needs whole matrices.*filter="):
        optimizer.step()


def other_mesh(mesh, folder):
    """Two ranks save what each of them then loads alone, and both go on alike."""
    device = mesh.device_type
    model = shard(build(TESTED_FORMATS[0], device), mesh)
    (optimizer,) = muon(model)
    train(model, optimizer, 2, device)
    dcp.save(states_of(model, optimizer), checkpoint_id=folder)
    alone = init_device_mesh(device, (2, 1), mesh_dim_names=("each", "alone"))["alone"]
    other = shard(build(TESTED_FORMATS[0], device, seed=3), alone)
    (other_optimizer,) = muon(other)
    resume(other, other_optimizer, folder, alone.get_group())
    losses = [
        train(one, each, 2, device, first=2)
        for one, each in ((model, optimizer), (other, other_optimizer))
    ]
    assert losses[0] == losses[1]


def test_checkpoints_of_another_mesh(device, tmp_path):
    ranks.run(2, device, other_mesh, str(tmp_path))
