"""torch.inference_mode(), where nothing above the operators is taken apart and tensors count no
writes: everything is as with torch.no_grad().
"""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from torch.distributed.tensor import Shard

import narrowcast as nc
import ranks
from models import one_of_each, same
from weights import quantized

SHAPE = 64, 128
TESTED_FORMATS = one_of_each(lambda f: (f.tensor_amax, f.columnwise_derived))

OPERATIONS = {
    "T": lambda w: w.T,
    "mT": lambda w: w.mT,
    "x @ w.T": lambda w: torch.ones(2, SHAPE[1]) @ w.T,
    "reshape": lambda w: w.reshape(2, 32, 128),
    "flatten": lambda w: w.flatten(),
    "unflatten": lambda w: w.unflatten(0, (2, 32)),
    "chunk": lambda w: w.chunk(2)[1],
    "narrow": lambda w: w.narrow(0, 32, 32),
    "view_as": lambda w: w.view_as(torch.empty(SHAPE)),
    "swapaxes": lambda w: w.swapaxes(0, 1),
    "to": lambda w: w.to(torch.bfloat16),
    "cpu": lambda w: w.cpu(),
    "vstack": lambda w: torch.vstack([w, w]),
    "type_as": lambda w: w.type_as(torch.empty(0, dtype=torch.float16)),
    "norm": lambda w: torch.linalg.norm(w),
}


def weight_of(format):
    torch.manual_seed(0)
    return nc.convert(nn.Linear(*SHAPE[::-1], bias=False), format).weight


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations(format, name):
    weight = weight_of(format)
    with torch.no_grad():
        expected = OPERATIONS[name](weight)
    with torch.inference_mode():
        result = OPERATIONS[name](weight)
        assert type(result) is type(expected) and result.dtype == expected.dtype
        assert torch.equal(result + 0, expected + 0)


WRITES = {
    "fill_": lambda w: w.fill_(0.25),
    "copy_": lambda w: w.copy_(torch.full(SHAPE, 0.25)),
    "nn.init": lambda w: nn.init.constant_(w, 0.25),
    "value": lambda w: w.value.fill_(0.25),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_part_is_read_after_a_write(format, name):
    """F.linear with a view of a weight, as experts use it."""
    weight, x = weight_of(format), torch.ones(2, SHAPE[1])
    with torch.inference_mode():
        F.linear(x, weight[:32])
    with torch.no_grad():
        WRITES[name](weight)
    with torch.inference_mode():
        got = F.linear(x, weight[:32])
    assert torch.equal(got, torch.full((2, 32), 0.25 * SHAPE[1]))


SHARDINGS = {
    "rows": (256, {}),
    "rows within blocks": (200, {}),
    "columns": (256, {"shard_placement_fn": lambda _: Shard(1)}),
    "offloaded": (256, {"offload_policy": CPUOffloadPolicy(pin_memory=False)}),
}


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("name", SHARDINGS)
@ranks.on(2, "cpu")
def test_a_first_gather(mesh, format, name, trains):
    """The memory that the first gather makes serves all later ones."""
    rows, options = SHARDINGS[name]
    torch.manual_seed(0)
    whole = nc.convert(nn.Linear(256, rows, bias=False), format)
    torch.manual_seed(0)
    model = nc.convert(nn.Linear(256, rows, bias=False), format)
    fully_shard(model, mesh=mesh, **options)
    x = torch.ones(2, 256)
    with torch.inference_mode():
        for _ in range(2):
            assert same(model(x), whole(x))
            model.reshard()
    if trains:
        for one in (model, whole):
            one(x).sum().backward()
            nc.FusedAdam(one.parameters(), lr=1e-2).step()
        assert same(model(x).detach(), whole(x).detach())


def test_writes_to_a_copy_are_seen(format):
    """An average that is kept by its state dict, of a copy that was made in inference mode."""
    layer = nn.Linear(*SHAPE[::-1], bias=False)
    model = nc.convert(layer, format)
    with torch.inference_mode():
        average = copy.deepcopy(model)
        assert not average.weight.value.is_inference()
        for _ in range(2):
            for mine, other in zip(average.state_dict().values(), [torch.ones(SHAPE)], strict=True):
                mine.lerp_(other, 0.5)
            expected = nc.quantize(average.weight.value, format).dequantize()
            assert same(quantized(average.weight).dequantize(), expected)
