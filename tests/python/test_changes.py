"""What makes plans over shards look at them again (bindings/changes.cpp), and what does not."""

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

import narrowcast as nc
import ranks
from models import GATHERS, unit
from narrowcast import _C
from narrowcast.fsdp import agreement, group

FORMAT = "mxfp8_e4m3"
TESTED_FORMATS = GATHERS


def weight() -> nn.Parameter:
    return nc.convert(nn.Linear(64, 64, bias=False), FORMAT).weight


def write_to_the_master(weight):
    weight.master[0] = 1.0


def fill(weight):
    nn.init.constant_(weight, 2.0)


def assign_data(weight):
    weight.data = nc.quantize(torch.ones(64, 64), FORMAT)


def become_a_matrix_of_its_own(weight):
    weight.data[:32].detach_from_whole()


def lose_and_regain_the_master(weight):
    weight.clear_high_precision_init_val()
    weight._store.keep_master()


CHANGES = [
    write_to_the_master,
    fill,
    assign_data,
    become_a_matrix_of_its_own,
    lose_and_regain_the_master,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda one: one.__name__)
def test_a_change_is_noticed(change):
    one = weight()
    watch = _C.Watch([one._store])
    assert watch.is_quiet
    with torch.no_grad():
        change(one)
    assert not watch.is_quiet
    assert _C.Watch([one._store]).is_quiet


def test_reading_changes_nothing():
    one, x = weight(), torch.ones(2, 64)
    watch = _C.Watch([one._store])
    nn.functional.linear(x, one).sum().backward()
    _ = one.dequantize(), one.master.sum(), one.detach(), one.t(), one[:32]
    assert watch.is_quiet


def test_stale_bytes_are_named():
    written, marked, fresh = (weight() for _ in range(3))
    with torch.no_grad():
        write_to_the_master(written)
        fill(marked)
    stores = [one._store for one in (written, fresh, marked)]
    assert _C.unsettled(stores) == [stores[0], stores[2]]


def steps(mesh, format):
    """Once everything has been looked at, steps look at nothing again."""
    torch.manual_seed(0)
    width = mesh.size() * unit(format)
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(3)))
    nc.convert(model, format).to(mesh.device_type)
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = nc.FusedAdam(model.parameters(), lr=1e-2)
    looks = []
    looked = group.GroupPlan._look, agreement.Agreements._look
    group.GroupPlan._look = lambda *all: looks.append("plan") or looked[0](*all)
    agreement.Agreements._look = lambda *all: looks.append("agreement") or looked[1](*all)
    try:
        for step in range(5):
            if step == 2:
                assert "plan" in looks
                looks.clear()
            model(torch.ones(4, width, device=mesh.device_type)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    finally:
        group.GroupPlan._look, agreement.Agreements._look = looked
    assert looks == []


def test_steps_look_at_nothing_again(format, device):
    ranks.run(2, device, steps, format)
