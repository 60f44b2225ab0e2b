"""Sharded models and their optimizers, trained and compared to the bit."""

import torch.nn.functional as F

import narrowcast as nc
from models import assert_equal, batch, build, shard, train


def trained(mesh, format, seed=0):
    device = mesh.device_type
    model = shard(build(format, device, seed=seed), mesh)
    optimizer = nc.FusedAdam(model.parameters(), lr=1e-2)
    train(model, optimizer, 2, device)
    return model, optimizer


def go_on(pairs, device):
    """Two more steps of both: equal losses, and equal at the end."""
    losses = [train(model, optimizer, 2, device, first=2) for model, optimizer in pairs]
    assert losses[0] == losses[1]
    assert_equal(*pairs)


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
