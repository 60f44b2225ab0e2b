"""Checkpoints that some ranks have written and others load, in another number: training goes on as
if nothing had happened, to the bit.
"""

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

import models
import narrowcast as nc
import ranks
from models import one_of_each

TESTED_FORMATS = one_of_each(lambda f: (f.gather, f.tensor_amax, f.amax))


def made(mesh, format, seed):
    """The last rank has fewer rows than the others, of two and of four, unless rows are packed."""
    torch.manual_seed(seed)
    f = nc.format(format)
    rows = 4 * max(f.row_step, 10) - (f.rowwise.element_bits == 8)
    model = nn.Sequential(nn.Linear(64, rows, bias=False))
    fully_shard(nc.convert(model, format).to(mesh.device_type), mesh=mesh)
    return model, nc.FusedAdam(model.parameters(), lr=1e-2, rounding="stochastic")


def square_of(model, step, device, dtype):
    """The loss."""
    x = torch.randn(8, 64, generator=torch.Generator().manual_seed(step), dtype=dtype)
    return model(x.to(device)).square().mean()


def train(mesh, model, optimizer, first):
    device = mesh.device_type
    return models.train(model, optimizer, 3, device, first=first, loss_of=square_of)


def states_of(model, optimizer):
    return dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))


def save(mesh, format, folder):
    model, optimizer = made(mesh, format, seed=0)
    train(mesh, model, optimizer, 0)
    dcp.save(states_of(model, optimizer), checkpoint_id=folder)
    return train(mesh, model, optimizer, 3)


def load(mesh, format, folder, is_used):
    model, optimizer = made(mesh, format, seed=1)
    if is_used:
        train(mesh, model, optimizer, 10)
    states = states_of(model, optimizer)
    dcp.load(states, checkpoint_id=folder)
    loaded = {"model_state_dict": states["model"], "optim_state_dict": states["optimizer"]}
    set_state_dict(model, optimizer, **loaded)
    return train(mesh, model, optimizer, 3)


@pytest.mark.parametrize("worlds", [(4, 2), (2, 4)], ids=str)
def test_other_numbers_of_ranks(format, device, worlds, tmp_path):
    is_used = worlds[0] == 2
    expected, *_ = ranks.run(worlds[0], device, save, format, str(tmp_path))
    for losses in ranks.run(worlds[1], device, load, format, str(tmp_path), is_used):
        assert losses == expected
