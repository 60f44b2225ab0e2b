"""distribute_tensor of a quantized weight, alone and as a full state dict is loaded with it; and
full_tensor() of shards, which has their values.
"""

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

import narrowcast as nc
import ranks
from models import BUFFERS, GATHERS, STORAGES, assert_same, batch, build, loss_of, same, shard, unit
from weights import value_of


def uneven(mesh, format, rows):
    """The last rank would have fewer bytes, and all say so."""
    experts = torch.nn.Module()
    experts.w = torch.nn.Parameter(torch.randn(3, rows, rows))
    nc.convert(experts, format, filter=lambda name, module: True, trainable=False)
    for source in (0, None):
        with pytest.raises(ValueError, match=r"last part .* 1 experts.*module, or load, before"):
            distribute_tensor(experts.w.detach(), mesh, [Shard(0)], src_data_rank=source)


def broadcast(mesh, format):
    """All have the value of the one that sends, whatever has been written before."""
    rank = mesh.get_local_rank()
    layers = [nc.convert(torch.nn.Linear(64, 64, bias=False), format) for _ in range(2)]
    with torch.no_grad():
        for layer in layers:
            layer.weight.fill_(1.0 + rank)
    dist.broadcast(layers[0].weight.detach(), 1)
    with torch.no_grad():
        layers[1].weight.fill_(2.0)
    assert same(layers[0].weight.value, layers[1].weight.value)
    for layer in layers:
        layer(torch.ones(2, 64))  # makes the bytes
    assert_same(layers[0].weight, layers[1].weight, what=format)


def zero(mesh, format):
    """ZeroRedundancyOptimizer: each rank steps some weights, and broadcasts them."""
    whole, model = build(format), build(format, seed=mesh.get_local_rank())
    wrapped = DistributedDataParallel(model)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=nc.FusedAdam, lr=1e-2)
    reference = nc.FusedAdam(whole.parameters(), lr=1e-2)
    for step in range(3):
        x, y = batch(model, step)
        for m, one in ((wrapped, optimizer), (whole, reference)):
            F.mse_loss(m(x), y).backward()
            one.step()
            one.zero_grad()
    for p, w in zip(model.parameters(), whole.parameters(), strict=True):
        assert same(value_of(p), value_of(w))
        if isinstance(w, nc.MasterWeight):
            assert_same(p, w, what=format)


def load(mesh, format):
    """The state dict of a whole converted model into a sharded one."""
    whole, model = build(format), shard(build(format, seed=1), mesh)
    options = StateDictOptions(full_state_dict=True)
    set_model_state_dict(model, whole.state_dict(), options=options)
    assert same(loss_of(model, 0), loss_of(whole, 0)), format
    model.reshard()
    for p, w in zip(model.parameters(), whole.parameters(), strict=True):
        assert same(value_of(p), value_of(w).chunk(mesh.size())[mesh.get_local_rank()])


@ranks.on(2, "cpu")
def test_distributed_weights(mesh):
    for format in STORAGES:
        rows = 2 * unit(format)
        torch.manual_seed(mesh.get_local_rank())
        layers = [nn.Linear(rows, rows) for _ in range(2)]
        torch.manual_seed(0)  # the first rank's count
        values = [nn.Linear(rows, rows).weight.detach() for _ in range(2)]
        for layer, value, trainable in zip(layers, values, (True, False), strict=True):
            weight = nc.convert(layer, format, trainable=trainable).weight.detach()
            for dim in (0, 1):
                mine = distribute_tensor(weight, mesh, [Shard(dim)]).to_local()
                rank = mesh.get_local_rank()
                if trainable:  # bytes that are a part's belong to a module's parameter
                    assert same(mine.value, value.chunk(2, dim)[rank])
                    continue
                part = nc.quantize(value, format).chunk(2, dim)[rank]
                names = [name for name in BUFFERS if getattr(mine, name) is not None]
                assert_same(mine, part, names, f"{format} {dim}")
        uneven(mesh, format, unit(format))
    load(mesh, "mxfp8_e4m3")
    load(mesh, "nvfp4")
    zero(mesh, "mxfp8_e4m3")
    zero(mesh, "nvfp4")
    for format in STORAGES:
        broadcast(mesh, format)


@ranks.on(1, "cpu")
def test_one_rank(mesh):
    load(mesh, "mxfp8_e4m3")


@pytest.mark.parametrize("trainable", [True, False])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("name", GATHERS)
@ranks.on("count", "cpu")
def test_full_tensors(mesh, name, trainable):
    torch.manual_seed(0)
    layer = nc.convert(nn.Linear(64, 128, bias=False), name, trainable=trainable)
    value = (layer.weight.value if trainable else layer.weight.dequantize()).clone()
    fully_shard(layer, mesh=mesh)
    whole = layer.weight.full_tensor()
    is_bytes = isinstance(whole, nc.QuantizedTensor)  # of one rank
    assert same(whole.dequantize() if is_bytes else value_of(whole), value)
    if trainable:
        (2 * whole).sum().backward()
        assert same(layer.weight.grad.full_tensor(), torch.full((128, 64), 2.0))
    if mesh.size() > 1:  # it has memory of its own
        with torch.no_grad():
            whole.zero_()
        assert same(value_of(layer.weight.full_tensor()), value)
