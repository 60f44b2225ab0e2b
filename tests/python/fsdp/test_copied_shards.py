"""FSDP2 copies the shard of a rank with fewer rows than the others when a model's state dict is
loaded. That rank makes its gathers anew, and it alone: it asks the others nothing.
"""

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

import narrowcast as nc
import ranks
from models import GATHERS, same, uneven_rows

TESTED_FORMATS = GATHERS


def model_for(mesh, format, reshard):
    torch.manual_seed(0)
    rows = uneven_rows(format)
    layers = nn.Linear(64, rows, bias=False), nn.GELU(), nn.Linear(rows, 64, bias=False)
    model = nn.Sequential(*layers).to(mesh.device_type)
    nc.convert(model, format, filter=lambda name, _: name == "0", recompute=reshard is not None)
    options = {} if reshard is None else {"reshard_after_forward": reshard}
    fully_shard(model[0], mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def loss_of(model, mesh):
    x = torch.ones(4, 64, device=mesh.device_type)
    loss = model(x).square().mean()
    loss.backward()
    for module in (model[0], model):
        module.reshard()
    return loss.detach()


def load(model):
    model.load_state_dict(model.state_dict())


@pytest.mark.parametrize("first", [True, False])
@ranks.on(3)
def test_resharding_has_changed(mesh, format, first):
    model = model_for(mesh, format, first)
    before = loss_of(model, mesh)
    model.set_reshard_after_forward(not first)
    load(model)
    assert same(loss_of(model, mesh), before)


@ranks.on(3)
def test_a_part_was_gathered_first(mesh, format):
    """Before the first forward nobody knows the tree, nor how its root is resharded."""
    model, other = model_for(mesh, format, None), model_for(mesh, format, None)
    model[0].unshard()
    model[0].reshard()
    load(model)
    losses = [loss_of(one, mesh) for one in (model, other, model)]
    assert same(losses[0], losses[1]) and same(losses[0], losses[2])


@ranks.on(3)
def test_a_load_before_a_backward(mesh, format):
    """The graph has the whole weights that the older shards were gathered into."""
    model = model_for(mesh, format, True)
    loss = model(torch.ones(4, 64, device=mesh.device_type)).sum()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(state, assign=True)
    with pytest.raises(RuntimeError, match="between a forward and its backward"):
        loss.backward()


class Two(nn.Module):
    """A layer of one row, of which the last rank has none, beside another."""

    def __init__(self):
        super().__init__()
        self.thin, self.wide = nn.Linear(64, 1, bias=False), nn.Linear(64, 64, bias=False)

    def forward(self, x):
        return self.thin(x) + self.wide(x)


@pytest.mark.parametrize("converts", [True, False])
@pytest.mark.parametrize("name", [n for n in nc.formats() if nc.format(n).shard_row_step == 1][:1])
@ranks.on(2)
def test_weights_beside_that_are_new(mesh, name, converts):
    """Only the rank without rows makes a plan anew, and meets weights that nobody has compared."""
    device = mesh.device_type
    torch.manual_seed(0)
    model, x = Two().to(device), torch.ones(1, 64, device=device)
    nc.convert(model.thin if converts else model, name)
    for module in (model.thin, model.wide, model):
        fully_shard(module, mesh=mesh)
    with torch.no_grad():
        if converts:
            model(x)
        else:
            model.thin.unshard()
            model.thin.reshard()
        load(model)
        if converts:
            nc.convert(model.wide, name)
        torch.manual_seed(0)
        whole = nc.convert(Two().to(device), name)
        assert same(model(x), whole(x))
