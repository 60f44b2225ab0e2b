"""Models cut over ranks within blocks and bytes, beside the whole ones that they must equal."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard

import narrowcast as nc
from internals import is_unaligned
from models import BUFFERS, STORAGES, assert_same, same

CUT_WITHIN_BLOCKS = [name for name in STORAGES if nc.format(name).shard_row_step > 1]


class Narrow(nn.Module):
    """Of rows that no number of ranks cuts at blocks; the last weight has fewer than most."""

    def __init__(self, format, rows=None):
        super().__init__()
        torch.manual_seed(0)
        rows = rows or nc.format(format).shard_row_step + 20
        self.up, self.down = nn.Linear(64, rows), nn.Linear(rows, 36, bias=False)
        self.head = nn.Linear(36, 4)

    def forward(self, x):
        return self.head(F.gelu(self.down(F.gelu(self.up(x)))))


def build(format, device, **options):
    return nc.convert(Narrow(format).to(device), format, **options)


def sharded(model, mesh, **options):
    fully_shard(model.down, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    return model


def train(mesh, models, optimizers, steps, first=0):
    """A sharded model and a whole one, both with the gradients of the whole one: a mean of three
    equal ones may be another number.
    """
    model, whole = models
    for step in range(first, first + steps):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(8, 64, generator=generator).to(mesh.device_type)
        losses = [one(x).square().mean() for one in dict.fromkeys(models)]
        assert losses[0].item() == losses[-1].item()
        for loss in losses:
            loss.backward()
        for p, w in zip(model.parameters(), whole.parameters(), strict=True):
            if model is whole:
                break
            own = ranks_part(w.grad, mesh)
            assert p.grad.to_local().shape == own.shape
            p.grad.to_local().copy_(own)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


def ranks_part(whole, mesh):
    """What FSDP2 gives a rank."""
    parts = [*whole.chunk(mesh.size())]
    parts += [whole[:0]] * (mesh.size() - len(parts))
    return parts[mesh.get_local_rank()]


def assert_whole(model, whole, optimizer=None, whole_optimizer=None):
    """Values and moments of all shards, and what a gather brings."""
    for (name, p), w in zip(model.named_parameters(), whole.parameters(), strict=True):
        if isinstance(w, nc.MasterWeight):
            assert same(torch.cat(gathered(p.to_local().value, p.device_mesh)), w.value), name
        state = {} if optimizer is None else optimizer.state[p]
        for key in ("exp_avg", "exp_avg_sq"):
            if key in state:
                assert same(state[key].full_tensor(), whole_optimizer.state[w][key]), (name, key)
    assert_gathers(model, whole)


def assert_gathers(model, whole):
    """The bytes of the whole model's weights, in the usages that a gather brings."""
    for module in (model, model.down):
        module.unshard()
    for name in ("up", "down", "head"):
        one, other = getattr(model, name).weight, getattr(whole, name).weight
        brought = [buffer for buffer in BUFFERS if getattr(one, buffer) is not None]
        assert "rowwise_data" in brought
        assert_same(one, other, brought, name)
    for module in (model, model.down):
        module.reshard()


def gathered(local, mesh):
    """The shards of all ranks, of which the last may have fewer rows."""
    group = mesh.get_group()
    every = [None] * dist.get_world_size(group)
    dist.all_gather_object(every, local.cpu(), group=group)
    return [one.to(local.device) for one in every]


def groups(model, rounding):
    """Two, of which one may be rounded to nearest."""
    first, *rest = model.parameters()
    kinds = ("stochastic", "nearest") if rounding == "both" else (rounding, rounding)
    return [{"params": p, "rounding": kind} for p, kind in zip(([first], rest), kinds, strict=True)]


def train_both(mesh, format, options=None, rounding="nearest", convert_first=True):
    device, options = mesh.device_type, options or {}
    whole = build(format, device)
    if convert_first:
        model = sharded(build(format, device), mesh, **options)
        assert_whole(model, whole)
    else:
        model = sharded(Narrow(format).to(device), mesh, **options)
        nc.convert(model, format)
    assert is_unaligned(model.up.weight)
    models = model, whole
    optimizers = [nc.FusedAdam(groups(one, rounding), lr=1e-2, seed=3) for one in models]
    train(mesh, models, optimizers, 3)
    assert_whole(*models, *optimizers)
    with torch.no_grad():  # all make the bytes anew, in the next forward
        value = whole.up.weight.value.clone()
        value[:7] *= 1.5
        whole.up.weight.copy_(value)
        model.up.weight.to_local().copy_(ranks_part(value, mesh))
    train(mesh, models, optimizers, 1, first=3)
    assert_whole(*models, *optimizers)
    full = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    for name, value in get_model_state_dict(whole).items():
        assert mesh.get_local_rank() > 0 or same(full[name], value), name


def by_pass(step):
    """A format whose columnwise bytes are quantized from values, of some row step at least."""
    return next(
        name
        for name in CUT_WITHIN_BLOCKS
        if nc.format(name).gather == "by pass" and nc.format(name).shard_row_step >= step
    )
