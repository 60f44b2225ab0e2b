"""Shards that begin and end within blocks and bytes: what ranks have together is what one process
has, byte for byte.
"""

import copy
import os
import pickle

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

import narrowcast as nc
import ranks
from models import BUFFERS, assert_same, same

TESTED_FORMATS = [name for name in nc.formats() if nc.format(name).shard_row_step > 1]


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
    """Masters and moments of all shards, and what a gather brings."""
    for (name, p), w in zip(model.named_parameters(), whole.parameters(), strict=True):
        if isinstance(w, nc.QuantizedTensor):
            master = torch.cat([*_gathered(p.to_local().master, p.device_mesh)])
            assert same(master, w.master), name
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


def _gathered(local, mesh):
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
    assert model.up.weight.to_local()._store.place is not None
    models = model, whole
    optimizers = [nc.FusedAdam(groups(one, rounding), lr=1e-2, seed=3) for one in models]
    train(mesh, models, optimizers, 3)
    assert_whole(*models, *optimizers)
    with torch.no_grad():  # by one rank alone: all make the bytes anew, in the next forward
        own = model.up.weight.to_local(), mesh.get_local_rank() == 0
        for one, writes in (own, (whole.up.weight, True)):
            if writes:
                value = one.master.clone()
                value[: min(7, len(value))] *= 1.5
                one.copy_(value)
    train(mesh, models, optimizers, 1, first=3)
    assert_whole(*models, *optimizers)
    full = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    for name, value in get_model_state_dict(whole).items():
        assert mesh.get_local_rank() > 0 or same(full[name], value), name


@pytest.mark.parametrize("world", [2, 3])
def test_any_cut_is_whole(format, device, world):
    ranks.run(world, device, train_both, format)


OPTIONS = {
    "kept": {"options": {"reshard_after_forward": False}},
    "stochastic": {"rounding": "stochastic"},
    "both roundings": {"rounding": "both"},
    "converted last": {"convert_first": False},
}
KINDS = {"fp8_block128", "mxfp6_e2m3", "nvfp4", "int8_block32"}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("weights", sorted(KINDS))
def test_options(weights, device, name):
    ranks.run(3, device, with_options, weights, OPTIONS[name])


def with_options(mesh, format, options):
    train_both(mesh, format, **options)


def by_pass(step):
    """A format whose columnwise bytes are quantized from masters, of some row step at least."""
    return next(
        name
        for name in TESTED_FORMATS
        if nc.format(name).gather == "by pass" and nc.format(name).shard_row_step >= step
    )


def over_two_dimensions(mesh, format, kind):
    """Hybrid sharding, and a forward's gather that is kept over a smaller mesh."""
    if kind == "hybrid":
        device = mesh.device_type
        mesh = dist.init_device_mesh(device, (2, 2), mesh_dim_names=("replicas", "shards"))
        whole, model = build(format, device), sharded(build(format, device), mesh)
        model(torch.ones(2, 64, device=device))
        model.unshard()
        assert_same(model.up.weight, whole.up.weight, BUFFERS, "up")
    else:
        train_both(mesh, format, {"reshard_after_forward": 2})


@pytest.mark.parametrize("kind", ["hybrid", "smaller"])
def test_over_two_dimensions(device, kind):
    ranks.run(4, device, over_two_dimensions, by_pass(1), kind)


def offloaded(mesh, format):
    if mesh.device_type == "cpu":
        train_both(mesh, format, {"offload_policy": CPUOffloadPolicy(pin_memory=False)})
        return
    both = DeviceMesh.from_group(dist.new_group(backend="cpu:gloo,cuda:nccl"), "cuda")
    here = sharded(build(format, "cpu"), both, offload_policy=CPUOffloadPolicy())
    there = sharded(build(format, "cuda"), both)
    assert here.up.weight.to_local().device.type == "cpu"
    x = torch.ones(3, 64, device="cuda")
    for model in (here, there):
        optimizer = nc.FusedAdam(model.parameters(), lr=1e-2)
        for _ in range(3):
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        model.unshard()
    assert_same(here.up.weight, there.up.weight, BUFFERS, "up")


def test_offloaded(device):
    """Torch takes meshes of the same ranks for one, whatever backends their groups have."""
    (ranks.run if device == "cpu" else ranks.run_alone)(2, device, offloaded, by_pass(1))


def frozen(mesh, format):
    """Without masters: the bytes of the whole, and nothing else, lie in shards."""
    device = mesh.device_type
    whole = build(format, device, trainable=False)
    model = sharded(build(format, device, trainable=False), mesh)
    assert model.up.weight.to_local().master is None
    x = torch.ones(3, 64, device=device)
    assert same(model(x), whole(x))
    model.reshard()
    local, own = model.up.weight.to_local(), ranks_part(whole.up.weight.dequantize(), mesh)
    assert same(local.dequantize(), own)
    with pytest.raises(NotImplementedError, match="shares blocks with the shards of other ranks"):
        local.copy_(own)


def test_frozen(device):
    ranks.run(3, device, frozen, by_pass(1))


def what_a_shard_cannot_do(mesh, format):
    model = sharded(build(format, mesh.device_type), mesh)
    local = model.up.weight.to_local().detach()
    other = copy.deepcopy(local)
    assert same(other.dequantize(), local.dequantize())
    assert same(local.to(torch.bfloat16).master, local.master)
    for act in (lambda: local[:3], lambda: pickle.dumps(local)):
        with pytest.raises(ValueError, match=r"up.weight.*shares blocks with those of other ranks"):
            act()
    with torch.no_grad():
        local.copy_(local.master * 2)
    with pytest.raises(ValueError, match="wait for the next gather"):
        local.dequantize()
    model.unshard()
    assert same(ranks_part(model.up.weight.dequantize(), mesh), other.dequantize() * 2)


def test_what_a_shard_cannot_do(device):
    ranks.run(2, device, what_a_shard_cannot_do, by_pass(32))


def missing_gradient(mesh, format):
    """On one rank alone: all raise, and go on from the masters as they are."""
    model = sharded(build(format, mesh.device_type), mesh)
    optimizer = nc.FusedAdam(model.parameters(), lr=1e-2)
    x = torch.ones(3, 64, device=mesh.device_type)
    model(x).sum().backward()
    if mesh.get_local_rank() == 1:
        model.up.weight.grad = None
    with pytest.raises(RuntimeError, match=r"some ranks had a gradient.*Every rank raises"):
        optimizer.step()
        optimizer.step()  # in which the ranks of GPUs hear of it
    model(x)
    model.unshard()
    weight = copy.deepcopy(model.up.weight)
    model.reshard()
    master = torch.cat(_gathered(model.up.weight.to_local().master, mesh))
    assert_same(weight, nc.quantize(master, format), BUFFERS, "up")


def test_missing_gradient(device):
    ranks.run(2, device, missing_gradient, by_pass(32))


def saved(mesh, format, folder, rounding):
    """Three steps and a checkpoint; or what it holds, on other ranks, and a fourth step. All is
    that of one process.
    """
    device = mesh.device_type
    models = sharded(build(format, device), mesh), build(format, device)
    optimizers = [nc.FusedAdam(one.parameters(), lr=1e-2, rounding=rounding) for one in models]
    if not os.path.exists(f"{folder}/.metadata"):
        train(mesh, models, optimizers, 3)
        dcp.save(states(models[0], optimizers[0]), checkpoint_id=folder)
        return
    train(mesh, models[1:] * 2, optimizers[1:], 3)
    loaded = states(models[0], optimizers[0])
    dcp.load(loaded, checkpoint_id=folder)
    parts = {"model_state_dict": loaded["model"], "optim_state_dict": loaded["optimizer"]}
    set_state_dict(models[0], optimizers[0], **parts)
    assert_whole(*models, *optimizers)
    train(mesh, models, optimizers, 1, first=3)
    assert_whole(*models, *optimizers)


def states(model, optimizer):
    return dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_checkpoint_on_other_ranks(device, rounding, tmp_path):
    for world in (3, 2) if device == "cpu" else (2, 1):
        ranks.run(world, device, saved, by_pass(32), str(tmp_path / "saved"), rounding)


def loaded_by_assigning(mesh, format):
    device = mesh.device_type
    models = sharded(build(format, device), mesh), build(format, device)
    for model in models:
        state = {name: value * 1.5 for name, value in model.state_dict().items()}
        model.load_state_dict(state, assign=True)
    assert_whole(*models)
    optimizers = [nc.FusedAdam(one.parameters(), lr=1e-2) for one in models]
    train(mesh, models, optimizers, 1)
    assert_whole(*models, *optimizers)


def test_loaded_by_assigning(device):
    ranks.run(3, device, loaded_by_assigning, by_pass(32))


def frozen_and_loaded(mesh, format):
    """The whole weight's bytes reach the shards, whoever has them."""
    device = mesh.device_type
    doubled = Narrow(format).to(device)
    with torch.no_grad():
        for parameter in doubled.parameters():
            parameter.mul_(2)
    whole = nc.convert(doubled, format, trainable=False)
    for first_alone in (False, True):
        model = sharded(build(format, device, trainable=False), mesh)
        state = {} if first_alone and mesh.get_local_rank() else whole.state_dict()
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=first_alone)
        set_model_state_dict(model, state, options=options)
        assert model.up.weight.to_local().master is None
        assert_gathers(model, whole)
    with pytest.raises(ValueError, match=r"no master.*ignore_frozen_params=True"):
        pickle.dumps(model.up.weight.to_local())


@pytest.mark.parametrize("weights", ["mxfp6_e2m3", "nvfp4"])
def test_frozen_and_loaded(weights, device):
    ranks.run(3, device, frozen_and_loaded, weights)


def summarized(mesh, format):
    """Before any gather and after one: each gather carries both usages."""
    model = sharded(build(format, mesh.device_type), mesh, reshard_after_forward=True)
    before = nc.summary(model)
    model(torch.ones(3, 64, device=mesh.device_type)).sum().backward()
    assert nc.summary(model).parameters == before.parameters
    weight = {one.name: one for one in before.parameters}["down.weight"]
    elements, bits = torch.Size(weight.shape).numel(), nc.format(format).wire_bits_per_element
    assert weight.gathered == round(2 * 2 * elements * bits / 8)


def test_summary(device):
    ranks.run(2, device, summarized, by_pass(32))
