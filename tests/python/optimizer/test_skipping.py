"""A gradient that overflows on one rank: all ranks skip the step, the first one too, and go on
together.
"""

import pytest
import torch

import narrowcast as nc
import ranks
from internals import tensors_of
from models import GATHERS, Model, local_values, loss_of, same, shard
from narrowcast import flat
from narrowcast.tensor import dtensors

TESTED_FORMATS = GATHERS


def state_of(model, optimizer):
    states = [one for state in optimizer.state.values() for one in state.values()]
    return [*local_values(model), *(dtensors.local_of(one).clone() for one in states)]


def snapshot(model, optimizer):
    """With the bytes, of which some are those of other ranks' rows, and undefined."""
    weights = [p for p in model.parameters() if isinstance(p.to_local(), nc.MasterWeight)]
    return [*state_of(model, optimizer), *(one.clone() for p in weights for one in tensors_of(p))]


def trained(mesh, format, takes_step):
    """After some steps: takes_step(optimizer, number, rank that overflows) may take one."""
    torch.manual_seed(0)
    model = nc.convert(Model(64), format).to(mesh.device_type)
    shard(model, mesh, reshard_after_forward=True)
    optimizer = nc.FusedAdam(model.parameters(), lr=1e-2)
    for step, overflows in enumerate([0, None, 1, None]):
        loss_of(model, step, mesh.device_type).backward()
        before = snapshot(model, optimizer)
        takes_step(optimizer, overflows)
        after = snapshot(model, optimizer)
        unchanged = len(before) == len(after) and all(map(same, before, after))
        assert unchanged == (overflows is not None), step
        optimizer.zero_grad()
    return state_of(model, optimizer)


@pytest.mark.parametrize("world", [2, 4])
@ranks.on("world")
def test_all_ranks_skip(mesh, format):
    def scaled(optimizer, overflows):
        found = mesh.get_local_rank() == overflows
        optimizer.found_inf = torch.tensor(float(found), device=mesh.device_type)
        optimizer.step()

    def left_out(optimizer, overflows):
        if overflows is None:
            optimizer.step()

    every = zip(*(trained(mesh, format, one) for one in (scaled, left_out)), strict=True)
    assert all(same(one, other) for one, other in every)


@pytest.mark.parametrize("beyond_half", [0, 3])
@ranks.on(2)
def test_all_owners_skip(mesh, format, beyond_half):
    """Of flat shards, as a distributed optimizer has them; also where cuts divide nothing, and
    steps reduce nothing.
    """
    torch.manual_seed(0)
    weight = nc.quantize(torch.randn(64, 64), format)
    half, rank = weight.numel() // 2 + beyond_half, mesh.get_local_rank()
    start, length = (0, half) if rank == 0 else (half, weight.numel() - half)
    master = torch.nn.Parameter(torch.randn(length, device=mesh.device_type))
    weight = weight.to(mesh.device_type)
    optimizer = nc.FusedAdam([master])
    flat.fuse(optimizer, [weight], [master], [start], group=mesh.get_group())
    for overflows in (0, None, 1, None):
        master.grad = torch.ones_like(master)
        before = master.detach().clone()
        found = rank == overflows
        optimizer.found_inf = torch.tensor(float(found), device=mesh.device_type)
        optimizer.step()
        assert same(master.detach(), before) == (overflows is not None)
