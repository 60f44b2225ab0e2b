"""Sharded models and their optimizers, trained and compared to the bit."""

import torch.nn.functional as F

import narrowcast as nc
from models import WHOLE_STATE, assert_same, batch, build, same, shard, train


def trained(mesh, format, seed=0):
    device = mesh.device_type
    model = shard(build(format, device, seed=seed), mesh)
    optimizer = nc.FusedAdam(model.parameters(), lr=1e-2)
    train(model, optimizer, 2, device)
    return model, optimizer


def assert_equal(model, other):
    """Equal weights, in bytes and values."""
    model.reshard()
    other.reshard()
    for (name, p), q in zip(model.named_parameters(), other.parameters(), strict=True):
        a, b = p.to_local(), q.to_local()
        if isinstance(a, nc.MasterWeight):
            assert same(a.value, b.value), name
            assert_same(a, b, what=name)
        else:
            assert same(a, b), name


def assert_equal_state(model, optimizer, other, other_optimizer):
    model.reshard()
    other.reshard()
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        state, others = optimizer.state[p], other_optimizer.state[q]
        assert state.keys() == others.keys()
        for key, value in state.items():
            local = [v if key in WHOLE_STATE else v.to_local() for v in (value, others[key])]
            assert same(*local), key


def go_on(pairs, device):
    """Two more steps of each: equal losses."""
    losses = [train(model, optimizer, 2, device, first=2) for model, optimizer in pairs]
    assert losses[0] == losses[1]
    assert_equal(pairs[0][0], pairs[1][0])


def train_and_record(mesh, model, steps=3):
    """Losses and gradients, of inputs too, of some steps."""
    optimizer, seen = nc.FusedAdam(model.parameters(), lr=1e-2), []
    for step in range(steps):
        x, y = batch(model, step, mesh.device_type)
        x.requires_grad_()  # as the inputs of all other blocks
        loss = F.mse_loss(model(x), y)
        loss.backward()
        seen += [loss.detach(), x.grad, *(p.grad.to_local().clone() for p in model.parameters())]
        optimizer.step()
        optimizer.zero_grad()
    return seen
