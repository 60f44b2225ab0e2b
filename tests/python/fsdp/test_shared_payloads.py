"""What all ranks pack and unpack of the weights of a group travels in one payload, which the first
of them carries: here of a group in which every format is, between plain weights.
"""

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

import narrowcast as nc
import ranks
from internals import view_of
from models import BUFFERS
from narrowcast.fsdp import torch_names

SIZE = 512
FORMATS = [None, *nc.formats(), None, *nc.formats()]


def model_of(recompute):
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(SIZE, SIZE, bias=False) for _ in FORMATS))
    for layer, format in zip(model, FORMATS, strict=True):
        if format is not None:
            nc.convert(layer, format, recompute=recompute)
    return model


def gathered(mesh, recompute, device):
    model, whole = model_of(recompute).to(device), model_of(recompute).to(device)
    fully_shard(model, mesh=mesh)
    for _ in range(2):
        model.unshard()
        for layer, other in zip(model, whole, strict=True):
            if not isinstance(other.weight, nc.QuantizedTensor):
                assert torch.equal(layer.weight, other.weight)
                continue
            assert view_of(layer.weight).usages  # what has come equals a direct quantization
            for name in BUFFERS:
                value = getattr(layer.weight, name)
                assert value is None or torch.equal(value, getattr(other.weight, name)), name
        model.reshard()
    managed = (torch_names.managed(layer.weight)[1] for layer in model)
    return [len(parameter.all_gather_outputs) for parameter in managed]


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("recompute", [False, True])
def test_every_format_in_one_group(device, world, recompute):
    for slots in ranks.run(world, device, gathered, recompute, device):
        first, second = slots[: len(FORMATS) // 2], slots[len(FORMATS) // 2 :]
        assert sum(slots) < 2 * len(FORMATS)
        assert sum(first) == sum(second) + 1  # that of all
