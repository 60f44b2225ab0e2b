"""Ranks on the CPU run on the CPU, where there are GPUs too."""

import pytest
import torch
from torch.distributed.fsdp import fully_shard

import ranks


def seen(mesh):
    """Whether a GPU is, and where torch shards of itself."""
    weight = fully_shard(torch.nn.Linear(4, 4)).weight
    return torch.cuda.is_available(), torch.cuda.device_count(), weight.device_mesh.device_type


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_no_gpu_is_seen():
    assert ranks.run(2, "cpu", seen) == [(False, 0, "cpu")] * 2
