"""reshard_after_forward as a number: a weight stays gathered over a smaller mesh. Weights, state
and losses are those of one process.
"""

import copy

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

import narrowcast as nc
import ranks
from models import GATHERS, assert_equal_state, build, loss_of, same, shard, train, unit

TESTED_FORMATS = GATHERS
WORLD, SMALLER = 4, 2


def train_both(mesh, format):
    device = mesh.device_type
    whole = build(format, device)
    model = shard(build(format, device), mesh, reshard_after_forward=SMALLER)
    optimizer, whole_optimizer = (nc.FusedAdam(m.parameters(), lr=1e-2) for m in (model, whole))
    with torch.no_grad():  # the first training forward gathers what this one has kept
        loss_of(model, 0, device)
    losses = train(model, optimizer, 3, device)
    assert losses == train(whole, whole_optimizer, 3, device)
    assert_equal_state(model, optimizer, whole, whole_optimizer, mesh)
    short_shards(mesh, format)


def short_shards(mesh, format):
    """Of rows that the smaller mesh could not cut."""
    device, rows = mesh.device_type, max(WORLD * nc.format(format).row_step - 2, 7)
    torch.manual_seed(0)
    whole = nn.Sequential(nn.Linear(unit(format), rows, device=device))
    model = copy.deepcopy(whole)
    for one in (whole, model):
        nc.convert(one, format)
    fully_shard(model[0], mesh=mesh, reshard_after_forward=SMALLER)
    fully_shard(model, mesh=mesh)
    x = torch.randn(4, unit(format)).to(device)
    gradients = []
    for one in (whole, model):
        one(x).square().sum().backward()
        gradients.append(one[0].weight.grad)
    assert same(gradients[1].full_tensor(), gradients[0])


def test_resharded_to_a_smaller_mesh_is_whole(format, device):
    ranks.run(WORLD, device, train_both, format)
