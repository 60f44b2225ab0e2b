"""Shards that begin and end within blocks and bytes: what ranks have together is what one process
has, byte for byte.
"""

import copy
import pickle

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy

import narrowcast as nc
import ranks
from any_cut_models import CUT_WITHIN_BLOCKS, build, by_pass, ranks_part, sharded, train_both
from models import BUFFERS, FEW, assert_same, same
from weights import quantized

FINE, COARSE = by_pass(1), by_pass(32)  # by the rows at which they can be cut


@pytest.mark.parametrize(
    ("world", "name"), [*((3, name) for name in CUT_WITHIN_BLOCKS), *((2, name) for name in FEW)]
)
@ranks.on("world")
def test_any_cut_is_whole(mesh, name):
    """Of three ranks one shares blocks with both others."""
    train_both(mesh, name)


OPTIONS = {
    "kept": {"options": {"reshard_after_forward": False}},
    "stochastic": {"rounding": "stochastic"},
    "both roundings": {"rounding": "both"},
    "converted last": {"convert_first": False},
}
# A format of each gather for each option, of 4, 6 and 8 bits, with one level of scales and two.
PAIRS = [(weights, name) for weights in ("mxfp6_e2m3", "nvfp4") for name in OPTIONS]


@pytest.mark.parametrize(("weights", "name"), PAIRS)
@ranks.on(3)
def test_options(mesh, weights, name):
    train_both(mesh, weights, **OPTIONS[name])


@pytest.mark.parametrize("kind", ["hybrid", "smaller"])
@ranks.on(4)
def test_over_two_dimensions(mesh, kind, format=FINE):
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
    (ranks.run if device == "cpu" else ranks.run_alone)(2, device, offloaded, FINE)


@ranks.on(3)
def test_frozen(mesh, format=FINE):
    """The bytes of the whole, and nothing else, lie in shards."""
    device = mesh.device_type
    whole = build(format, device, trainable=False)
    model = sharded(build(format, device, trainable=False), mesh)
    assert isinstance(model.up.weight.to_local(), nc.QuantizedTensor)
    x = torch.ones(3, 64, device=device)
    assert same(model(x), whole(x))
    model.reshard()
    local, own = model.up.weight.to_local(), ranks_part(whole.up.weight.dequantize(), mesh)
    assert same(local.dequantize(), own)
    with pytest.raises(NotImplementedError, match="blocks are shared with other ranks"):
        local.copy_(own)


@ranks.on(2)
def test_what_a_shard_cannot_do(mesh, format=COARSE):
    """Be the operand of a product, and nor can a copy: before the first gather, after a write, and
    while its bytes are those of whole blocks. Its value is any tensor's.
    """
    model = sharded(build(format, mesh.device_type), mesh)
    local, x = model.up.weight.to_local().detach(), torch.ones(3, 64, device=mesh.device_type)
    assert same(copy.deepcopy(local).value, local.value)
    assert same(local.to(torch.bfloat16).value, local.value)
    assert same(pickle.loads(pickle.dumps(local)), local.value)
    for make in (copy.deepcopy, torch.Tensor.detach):
        with pytest.raises(ValueError, match=r"up.weight.* wait for the next gather"):
            F.linear(x, make(local))
    model.unshard()
    value, part = quantized(local).dequantize(), ranks_part(model.up.weight.dequantize(), mesh)
    assert same(value, part)
    assert same(x @ local[:5].t(), x @ value[:5].t())
    with pytest.raises(ValueError, match=r"up.weight.*shares blocks with those of other ranks"):
        F.linear(x, local)
    with torch.no_grad():
        local.mul_(2)
    for one in (local, local[:5]):
        with pytest.raises(ValueError, match="wait for the next gather"):
            F.linear(x, one)
    model.reshard()
    model.unshard()
    assert same(ranks_part(model.up.weight.dequantize(), mesh), 2 * value)


@ranks.on(2)
def test_summary(mesh, format=COARSE):
    """Before any gather and after one: each of the two carries the usage of its pass."""
    model = sharded(build(format, mesh.device_type), mesh, reshard_after_forward=True)
    before = nc.summary(model)
    model(torch.ones(3, 64, device=mesh.device_type)).sum().backward()
    assert nc.summary(model).parameters == before.parameters
    weight = {one.name: one for one in before.parameters}["down.weight"]
    elements, bits = torch.Size(weight.shape).numel(), nc.format(format).wire_bits_per_element
    assert weight.gathered == round(2 * elements * bits / 8)


# ---- state dicts of frozen ones ----


@pytest.mark.parametrize("weights", ["mxfp6_e2m3", "nvfp4"])
@ranks.on(3)
def test_frozen_and_loaded(mesh, weights):
    """A whole weight's bytes cannot be cut within blocks, nor can a shard's be saved."""
    whole = build(weights, mesh.device_type, trainable=False)
    for first_alone in (False, True):
        model = sharded(build(weights, mesh.device_type, trainable=False), mesh)
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=first_alone)
        with pytest.raises(ValueError, match=r"weight.* cannot be cut"):
            set_model_state_dict(model, whole.state_dict(), options=options)
    with pytest.raises(ValueError, match=r"ignore_frozen_params=True"):
        pickle.dumps(model.up.weight.to_local())
