"""Weights with one scale of the tensor over ranks: the bytes of one process with the whole ones."""

import copy

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import narrowcast as nc
import ranks
from cut_weights import assert_part, assert_parts, give_gradients
from models import same
from narrowcast.tensor import dtensors
from shared_scales import ENTRIES, OPTIONS, SPANNING, STOCHASTIC, Projections, Truth, build, loss_of
from weights import quantized

TESTED_FORMATS = SPANNING


def assert_gathered(model, whole, what):
    """What FSDP2 gathers are the whole weights' bytes."""
    loss_of(model, 0, next(model.parameters()).device.type)  # as before any forward
    model.unshard()
    for name, weight in whole.named_parameters():
        got = model.get_parameter(name)
        for part in ("rowwise_data", "rowwise_scale_inv", "tensor_amax"):
            assert same(getattr(got, part), getattr(quantized(weight), part)), (what, name, part)
    model.reshard()
    for name, weight in whole.named_parameters():
        local = quantized(dtensors.local_of(model.get_parameter(name)))
        assert same(local.history, quantized(weight).history), what


# On three ranks 48 rows are cut between blocks, 32 within, beside 96 that are not, and of 2 one
# rank has none.
CASES = [(3, 48, STOCHASTIC, False), (3, 32, OPTIONS, True)]
CASES += [(3, 2, STOCHASTIC, False), (1, 48, STOCHASTIC, False)]


@pytest.mark.parametrize(("world", "few", "options", "is_sharded_first"), CASES)
@ranks.on("world")
def test_training(mesh, format, few, options, is_sharded_first):
    device = mesh.device_type
    if is_sharded_first:
        model = fully_shard(Projections(few=few).to(device), mesh=mesh)
        nc.convert(model, format, share_scale=ENTRIES)
    else:
        model = fully_shard(build(format, device, few), mesh=mesh)
    whole = build(format, device, few)
    truth = Truth(whole)
    truth.compare("converted")
    assert_gathered(model, whole, "converted")
    optimizers = [nc.FusedAdam(one.parameters(), **options) for one in (model, whole)]

    def step(number, without=()):
        loss_of(model, number, device).backward()
        give_gradients(model, whole)
        for one in (model, whole):
            for name in without:
                one.get_parameter(name).grad = None
        for one in optimizers:
            one.step()
            one.zero_grad()

    for number in (1, 2):
        step(number)
        truth.compare(f"step {number}", optimizers[1], number)
        assert_gathered(model, whole, f"step {number}")
    values = copy.deepcopy(model.state_dict())
    step(3, without=["k_proj.weight", "up_proj.weight"])
    truth.begin()
    truth.compare("gradients are missing")
    assert_gathered(model, whole, "gradients are missing")
    for one in (model, whole):
        for name in ("k_proj.weight", "up_proj.weight"):
            local = dtensors.local_of(one.get_parameter(name))
            if local.numel():
                local.value.mul_(5)
    truth.begin()
    truth.compare("one is written to")
    assert_gathered(model, whole, "one is written to")
    model.load_state_dict(values)
    for name, value in values.items():
        full = value.full_tensor()
        with torch.no_grad():
            whole.get_parameter(name).copy_(full)
    truth.begin()
    truth.compare("values are loaded")
    assert_gathered(model, whole, "values are loaded")


@pytest.mark.parametrize("world", [2, 4])
@ranks.on("world")
def test_tensor_parallel(mesh, format, world):
    """Over two ranks, and of four over FSDP2 too, where shards of q_proj share blocks with each
    other, and those of k_proj alone would not.
    """
    device, few = mesh.device_type, 64
    meshes = init_device_mesh(device, (world // 2, 2), mesh_dim_names=("rows", "parts"))
    plan = {name: ColwiseParallel() for name in (*ENTRIES[0], *ENTRIES[1])}
    plan["down_proj"] = RowwiseParallel()
    model = parallelize_module(build(format, device, few), meshes["parts"], plan)
    if world > 2:
        fully_shard(model, mesh=meshes["rows"])
    whole = build(format, device, few)
    truth = Truth(whole)
    truth.compare("converted")
    optimizers = [nc.FusedAdam(one.parameters(), **OPTIONS) for one in (model, whole)]
    for step in (1, 2):
        loss_of(model, step, device).backward()
        give_gradients(model, whole)
        for one in optimizers:
            one.step()
            one.zero_grad()
        truth.compare(f"step {step}")
        assert_parts(model, whole, optimizers, f"step {step}")
    for one in (model, whole):
        for name in ("k_proj.weight", "up_proj.weight"):
            dtensors.local_of(one.get_parameter(name)).value.mul_(5)
    loss_of(model, 3, device)
    truth.begin()
    truth.compare("written to")
    if world > 2:  # the root's weights stay gathered
        for name, weight in whole.named_parameters():
            assert_part(model.get_parameter(name), weight, ["rowwise_data", "tensor_amax"], name)
        model.reshard()
    assert_parts(model, whole, optimizers, "written to")


@ranks.on(2)
def test_groups_of_fsdp(mesh, format="nvfp4"):
    """Weights that share a scale are gathered together."""
    model = build(format, mesh.device_type)
    fully_shard(model.k_proj, mesh=mesh)
    with pytest.raises(ValueError, match="one call of fully_shard"):
        loss_of(fully_shard(model, mesh=mesh), 0, mesh.device_type)
