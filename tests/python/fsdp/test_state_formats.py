"""Moments in a state format under fully_shard: codes and scales on any number of ranks are those of
one process, also where a cut divides a weight's blocks, and in checkpoints of other meshes.
"""

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

import narrowcast as nc
import ranks
from models import SHARDINGS, WHOLE_STATE, build, local_rows, same, shard, train
from resuming import hand_over_full_state, resume, states_of
from weights import value_of

TESTED_FORMATS = SHARDINGS
STATE = nc.state_formats()[0]
OPTIONS = {"lr": 1e-2, "state_dtype": STATE}


def adamw(*models):
    return [nc.optim.AdamW(one.parameters(), **OPTIONS) for one in models]


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@ranks.on("world")
def test_sharded_is_whole(mesh, format):
    """On three ranks cuts divide blocks of weights."""
    device = mesh.device_type
    whole = build(format, device)
    model = shard(build(format, device), mesh)
    optimizer, whole_optimizer = adamw(model, whole)
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):  # integers, which a mean over three ranks does not round
        for p, w in zip(model.parameters(), whole.parameters(), strict=True):
            gradient = torch.randint(-8, 9, w.shape, generator=generator).to(device, torch.float32)
            w.grad = gradient
            p.grad = distribute_tensor(gradient, mesh, p.placements)
        optimizer.step()
        whole_optimizer.step()
    assert any(f"exp_avg_{STATE}" in state for state in optimizer.state.values())
    for p, w in zip(model.parameters(), whole.parameters(), strict=True):
        assert same(value_of(p), local_rows(value_of(w), p, mesh))
        for key, value in whole_optimizer.state[w].items():
            if key not in WHOLE_STATE:
                assert same(optimizer.state[p][key].to_local(), local_rows(value, p, mesh)), key


@ranks.on(2)
def test_columns(mesh, device):
    """Cuts at multiples of a block leave the blocks as they are; others are an error."""
    whole, model = (build(TESTED_FORMATS[0], device) for _ in range(2))
    by_columns = lambda p: Shard(1) if p.dim() == 2 and p.shape[1] == 256 else None  # noqa: E731
    shard(model, mesh, shard_placement_fn=by_columns)
    optimizer, whole_optimizer = adamw(model, whole)
    assert train(model, optimizer, 2, device) == train(whole, whole_optimizer, 2, device)
    p, w = (one.blocks[0].down.weight for one in (model, whole))
    for key in (f"exp_avg_{STATE}", f"exp_avg_{STATE}_scale"):
        mine, theirs = optimizer.state[p][key], whole_optimizer.state[w][key]
        assert same(mine.to_local(), theirs.chunk(2, 1)[mesh.get_local_rank()].contiguous())
        assert same(mine.full_tensor(), theirs)
    layer = nn.Linear(192, 8, bias=False, device=device)
    fully_shard(layer, mesh=mesh, shard_placement_fn=lambda _: Shard(1))
    (optimizer,) = adamw(layer)
    layer(torch.ones(1, 192, device=device)).sum().backward()
    with pytest.raises(NotImplementedError, match=r"96 columns, which divides blocks of 128"):
        optimizer.step()


def other_mesh(mesh, folder):
    """Two ranks save what each of them then loads alone."""
    device = mesh.device_type
    model = shard(build(TESTED_FORMATS[0], device), mesh)
    (optimizer,) = adamw(model)
    train(model, optimizer, 2, device)
    dcp.save(states_of(model, optimizer), checkpoint_id=folder)
    alone = init_device_mesh(device, (2, 1), mesh_dim_names=("each", "alone"))["alone"]
    other = shard(build(TESTED_FORMATS[0], device, seed=3), alone)
    (other_optimizer,) = adamw(other)
    resume(other, other_optimizer, folder, alone.get_group())
    for p, w in zip(model.parameters(), other.parameters(), strict=True):
        for key, value in optimizer.state[p].items():
            theirs = other_optimizer.state[w][key]
            if isinstance(value, DTensor):
                value, theirs = value.full_tensor(), theirs.full_tensor()
            assert same(value, theirs), key


def test_checkpoints_of_another_mesh(device, tmp_path):
    ranks.run(2, device, other_mesh, str(tmp_path))


@ranks.on(2)
def test_full_state_dicts(mesh, device):
    """Of one state into the other, by names and shapes."""
    model, other = (shard(build(TESTED_FORMATS[0], device), mesh) for _ in range(2))
    optimizer, other_optimizer = adamw(model, other)
    train(model, optimizer, 2, device)
    hand_over_full_state(model, optimizer, other, other_optimizer)
    for p, w in zip(model.parameters(), other.parameters(), strict=True):
        for key, value in optimizer.state[p].items():
            mine, theirs = value, other_optimizer.state[w][key]
            if isinstance(mine, DTensor):
                mine, theirs = mine.to_local(), theirs.to_local()
            assert same(mine, theirs), key
