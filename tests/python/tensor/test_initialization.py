"""Initialisers act on converted weights, whole and sharded, with a plain tensor's values."""

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

import narrowcast as nc
import ranks
from models import FEW, GATHERS, assert_quantized, same, unit

TESTED_FORMATS = GATHERS

INITIALIZERS = {
    "uniform_": {},
    "normal_": {"std": 0.3},
    "constant_": {"val": 0.5},
    "ones_": {},
    "zeros_": {},
    "xavier_uniform_": {},
    "xavier_normal_": {},
    "kaiming_uniform_": {"a": 5**0.5},
    "kaiming_normal_": {},
    "trunc_normal_": {"std": 0.02},
    "orthogonal_": {"gain": 2.0},
    "eye_": {},
    "sparse_": {"sparsity": 0.3},
    "dirac_": {"groups": 2},
}
NAMES = pytest.mark.parametrize("name", INITIALIZERS)


def weight_of(format, dimensions=2):
    n = unit(format)
    shape = (2 * n, n) if dimensions == 2 else (2 * n, 2, n)
    layer = nn.Linear(1, 1)
    layer.weight = nn.Parameter(torch.randn(shape, generator=torch.Generator().manual_seed(0)))
    return layer


def initialize(layer, name):
    torch.manual_seed(1)
    return getattr(nn.init, name)(layer.weight, **INITIALIZERS[name])


@NAMES
@pytest.mark.parametrize("by_name", [False, True])
def test_whole(format, device, name, by_name):
    dimensions = 3 if name == "dirac_" else 2
    plain = weight_of(format, dimensions).to(device)
    layer = nc.convert(weight_of(format, dimensions).to(device), format)
    initialize(plain, name)
    if by_name:
        torch.manual_seed(1)
        function = getattr(nn.init, name)
        assert function(tensor=layer.weight, **INITIALIZERS[name]) is layer.weight
    else:
        assert initialize(layer, name) is layer.weight
    assert same(layer.weight.value, plain.weight)
    assert_quantized(layer.weight, plain.weight)
    assert layer.weight.requires_grad


# Which torch cannot do to a DTensor: the first resizes its local part to the whole.
REFUSED = {"eye_": (ValueError, "another shape"), "sparse_": (RuntimeError, "DTensor")}


@NAMES
@pytest.mark.parametrize("sharded", FEW)
@ranks.on(2)
def test_sharded(mesh, sharded, name):
    dimensions = 3 if name == "dirac_" else 2
    plain, layer = (weight_of(sharded, dimensions).to(mesh.device_type) for _ in range(2))
    nc.convert(layer, sharded)
    for one in (plain, layer):
        fully_shard(one, mesh=mesh)
    if name in REFUSED:
        with pytest.raises(REFUSED[name][0], match=REFUSED[name][1]):
            initialize(layer, name)
        return
    initialize(plain, name)
    expected = plain.weight.to_local().detach()
    assert initialize(layer, name) is layer.weight
    assert same(layer.weight.to_local().value, expected)
    whole = layer.weight.full_tensor()
    layer.unshard()
    assert same(layer.weight.dequantize(), nc.quantize(whole, sharded).dequantize())
