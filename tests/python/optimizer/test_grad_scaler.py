"""FusedAdam under automatic mixed precision: found_inf and grad_scale, and torch's GradScaler."""

import pytest
import torch

import narrowcast as nc
from mixed_model import give_gradients, model_of, snapshot, unchanged
from models import DEVICES, same


def test_found_inf_changes_nothing():
    model = model_of()
    optimizer = nc.FusedAdam(model.parameters())
    give_gradients(model)
    before = snapshot(model, optimizer)
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(2.0), torch.tensor(1.0)
    optimizer.step()
    assert unchanged(before, model, optimizer)
    optimizer.found_inf = torch.tensor(0.0)
    optimizer.step()
    assert not unchanged(before, model, optimizer)


def test_grad_scale_divides_gradients():
    results = []
    for scale in (1.0, 1024.0):
        model = model_of()
        optimizer = nc.FusedAdam(model.parameters())
        give_gradients(model)
        for p in model.parameters():
            p.grad *= scale
        optimizer.grad_scale, optimizer.found_inf = torch.tensor(scale), torch.tensor(0.0)
        optimizer.step()
        results.append(snapshot(model, optimizer))
    assert all(same(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("device", DEVICES)
def test_grad_scaler(device):
    model = model_of(device)
    optimizer = nc.FusedAdam(model.parameters())
    scaler = torch.amp.GradScaler(device, init_scale=256.0)
    for overflow in (False, True):
        before = snapshot(model, optimizer)
        loss = model(torch.ones(2, 64, device=device)).sum()
        scaler.scale(loss * (float("inf") if overflow else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        assert unchanged(before, model, optimizer) == overflow
    assert scaler.get_scale() == 128.0
