"""CPUOffloadPolicy: shards and moments stay on the CPU. Weights, state and losses are
those of one process.
"""

import pytest
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy

import narrowcast as nc
import ranks
from models import GATHERS, assert_equal_state, build, shard, train

TESTED_FORMATS = GATHERS


def train_both(mesh, format):
    """Where gathers are on the CPU too, FSDP2 cannot pin, and there is nothing to move."""
    policy = CPUOffloadPolicy(pin_memory=mesh.device_type == "cuda")
    device = mesh.device_type
    if device == "cuda":
        mesh = DeviceMesh.from_group(dist.new_group(backend="cpu:gloo,cuda:nccl"), device)
    model = shard(build(format), mesh, reshard_after_forward=True, offload_policy=policy)
    optimizer = nc.FusedAdam(model.parameters(), lr=1e-2)
    losses = train(model, optimizer, 3, device)
    assert all(p.to_local().device.type == "cpu" for p in model.parameters())
    assert all(p.to_local().value.device.type == "cpu" for p in converted(model))
    if device == "cpu":
        whole = build(format)
        whole_optimizer = nc.FusedAdam(whole.parameters(), lr=1e-2)
        assert losses == train(whole, whole_optimizer, 3)
        assert_equal_state(model, optimizer, whole, whole_optimizer, mesh)
    else:
        plain = shard(build(format, device), mesh, reshard_after_forward=True)
        assert losses == train(plain, nc.FusedAdam(plain.parameters(), lr=1e-2), 3, device)
    model.unshard()
    assert model.head.weight.device.type == device


def converted(model):
    parameters = [*model.parameters()]
    return [p for p in parameters if isinstance(p.to_local(), nc.MasterWeight)]


def run(world, device, *task):
    """Torch takes meshes of the same ranks for one, whatever backends their groups have."""
    return (ranks.run if device == "cpu" else ranks.run_alone)(world, device, *task)


@pytest.mark.parametrize("world", [1, 2])
def test_offloaded_is_whole(format, device, world):
    run(world, device, train_both, format)
