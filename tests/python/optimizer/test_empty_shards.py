"""Steps with delayed scaling over weights with fewer rows than ranks: a rank without rows does not
know what was written to the others' shards.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard

import narrowcast as nc
import ranks
from models import assert_quantized, same
from weights import quantized

DELAYED = [name for name in nc.formats() if nc.format(name).is_delayed]
WIDTH, WORLD = 32, 4


class Experts(nn.Module):
    """Two experts on four ranks, and a layer of which each rank has rows."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(2, WIDTH, WIDTH) * 0.1)
        self.out = nn.Linear(WIDTH, WORLD * WIDTH)

    def forward(self, x):
        return self.out(F.linear(x, self.w[0]) + F.linear(x, self.w[1]))


def written_before_a_step(mesh, name):
    """Values that are loaded between a backward and the step, on each rank that has rows."""
    device = mesh.device_type
    torch.manual_seed(0)
    model = nc.convert(Experts().to(device), name, parameters="w")
    fully_shard(model, mesh=mesh)
    optimizer = nc.FusedAdam(model.named_parameters(), lr=1e-2)
    x = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(0)).to(device)
    for step in range(3):
        model(x).square().mean().backward()
        for weight in (model.w, model.out.weight):
            local = weight.to_local()
            if step == 1 and local.numel():
                with torch.no_grad():
                    local.copy_(2 * local.value)
        before = model.w.full_tensor()
        optimizer.step()
        optimizer.zero_grad()
        for weight in (model.w, model.out.weight):
            whole, local = weight.full_tensor(), quantized(weight.to_local())
            assert same(local.history[2], whole.abs().max()), step
            if local.numel():
                assert_quantized(local.cpu(), weight.to_local().value.cpu(), f"step {step}")
        assert not same(before, model.w.full_tensor())
    return [quantized(weight.to_local()).history.tolist() for weight in (model.w, model.out.weight)]


@pytest.mark.parametrize("name", DELAYED)
def test_written_before_a_step(name, device):
    every = ranks.run(WORLD, device, written_before_a_step, name)
    assert all(one == every[0] for one in every)
