"""Fewer rows than ranks: several ranks have a shard of no rows, and take part in everything."""

import pytest
import torch
import torch.distributed.checkpoint as checkpoint
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.fsdp import fully_shard

import narrowcast as nc
import ranks
from models import GATHERS, assert_equal_state, same, unit
from weights import quantized

TESTED_FORMATS = GATHERS
WORLD, STEPS = 4, 3


class Experts(nn.Module):
    """Two experts of one layer each, on four ranks, and a layer of a few rows where it is possible
    to cut one.
    """

    def __init__(self, format):
        super().__init__()
        width = unit(format)
        self.w = nn.Parameter(torch.randn(2, width, width) * 0.1)
        rows = 2 if nc.format(format).row_step == 1 else WORLD * width
        self.few = nn.Linear(width, rows)

    def forward(self, x):
        return self.few(torch.cat([F.linear(x, self.w[0]), F.linear(x, self.w[1])]))


def made(format, device, **options):
    torch.manual_seed(0)
    model = Experts(format).to(device)
    return nc.convert(model, format, parameters="w", **options)


def train(model, optimizer, device):
    losses = []
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(4, model.few.weight.shape[1], generator=generator).to(device)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def train_both(mesh, format, rounding):
    device = mesh.device_type
    whole, model = made(format, device), made(format, device)
    fully_shard(model, mesh=mesh, reshard_after_forward=True)
    assert model.w.to_local().shape[0] == (1 if mesh.get_local_rank() < 2 else 0)
    optimizer, whole_optimizer = (
        nc.FusedAdam(m.parameters(), lr=1e-2, rounding=rounding) for m in (model, whole)
    )
    losses = train(model, optimizer, device)
    assert losses == train(whole, whole_optimizer, device)
    assert_equal_state(model, optimizer, whole, whole_optimizer, mesh)
    fresh = made(format, device)
    nn.init.normal_(fresh.w)
    fully_shard(fresh, mesh=mesh)
    nn.init.normal_(fresh.few.weight)
    set_model_state_dict(fresh, get_model_state_dict(model))
    full = StateDictOptions(full_state_dict=True)
    for one in (model, fresh):
        saved = get_model_state_dict(one, options=full)
        for name, value in get_model_state_dict(whole).items():
            assert mesh.get_local_rank() > 0 or same(saved[name], value)
    fresh(torch.ones(4, unit(format), device=device)).sum().backward()


def test_fewer_rows_than_ranks(format, device):
    rounding = "stochastic" if nc.format(format).tensor_amax else "nearest"
    ranks.run(WORLD, device, train_both, format, rounding)


@ranks.on(WORLD)
def test_frozen(mesh, format):
    """Without a master a rank without rows has the whole weight's scales all the same."""
    whole, model = (made(format, mesh.device_type, trainable=False) for _ in range(2))
    fully_shard(model, mesh=mesh)
    x = torch.randn(4, unit(format), device=mesh.device_type)
    assert torch.equal(model(x), whole(x))


@ranks.on(WORLD)
def test_a_loaded_frozen_weight(mesh, format, tmp_path):
    """A checkpoint brings a rank what it has rows of: those without have the others' scales."""
    device = mesh.device_type
    saved, model = (made(format, device, trainable=False) for _ in range(2))
    with torch.no_grad():
        saved.w.copy_(torch.full_like(saved.w, 8.0).to(device))
    x = torch.randn(4, unit(format), device=device)
    expected = saved(x)
    for one in (saved, model):
        fully_shard(one, mesh=mesh)
    assert not torch.equal(model(x), expected)
    checkpoint.save(get_model_state_dict(saved), checkpoint_id=tmp_path)
    state = get_model_state_dict(model)
    checkpoint.load(state, checkpoint_id=tmp_path)
    set_model_state_dict(model, state)
    assert torch.equal(model(x), expected)
    model.eval()
    assert torch.equal(model(x), expected)


@ranks.on(WORLD)
def test_a_loaded_weight(mesh, format, tmp_path):
    """A load writes nothing on ranks without rows, whose flags then differ from the others'."""
    device, full = mesh.device_type, StateDictOptions(full_state_dict=True)
    saved, model = made(format, device), made(format, device)
    with torch.no_grad():
        for p in saved.parameters():
            p.copy_(8 * p)
    x = torch.randn(4, unit(format), device=device)
    expected, value = saved(x), quantized(saved.w).dequantize()
    for one in (saved, model):
        fully_shard(one, mesh=mesh)
    assert not torch.equal(model(x), expected)
    checkpoint.save(get_model_state_dict(saved), checkpoint_id=tmp_path)

    def load():
        state = get_model_state_dict(model)
        checkpoint.load(state, checkpoint_id=tmp_path)

    load()
    assert torch.equal(model(x), expected)
    with torch.no_grad():
        model.few.bias.zero_()
    load()
    nc.to_plain(model, values="dequantized")
    plain = get_model_state_dict(model, options=full)
    assert mesh.get_local_rank() > 0 or same(plain["w"], value.cpu())


@pytest.mark.parametrize("spanning", [one for one in GATHERS if nc.format(one).tensor_amax])
@ranks.on(WORLD)
def test_two_compiled_forwards(mesh, spanning):
    """A compiled graph saves the scales for its backward, which a later forward lends anew."""
    model = made(spanning, mesh.device_type, trainable=False)
    fully_shard(model, mesh=mesh)
    run = torch.compile(model, backend="aot_eager")
    x = torch.randn(4, unit(spanning), device=mesh.device_type, requires_grad=True)
    for loss in [run(x).sum() for _ in range(2)]:
        loss.backward()
    assert x.grad.isfinite().all()
