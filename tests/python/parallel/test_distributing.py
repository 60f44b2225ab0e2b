"""distribute_tensor of a quantized weight, alone and as a full state dict is loaded with it; and
full_tensor() of shards, a plain tensor of masters.
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
from models import BUFFERS, STORAGES, assert_same, batch, build, loss_of, same, shard, unit


def distribute(mesh):
    for format in STORAGES:
        rows = 2 * unit(format)
        torch.manual_seed(mesh.get_local_rank())
        weights = [nc.convert(torch.nn.Linear(rows, rows), format).weight for _ in range(2)]
        torch.manual_seed(0)  # the first rank's counts
        whole = nc.convert(torch.nn.Linear(rows, rows), format).weight.detach()
        for dim in (0, 1):
            mine = distribute_tensor(weights[0].detach(), mesh, [Shard(dim)]).to_local()
            part = whole.chunk(2, dim)[mesh.get_local_rank()]
            names = [name for name in BUFFERS if getattr(mine, name) is not None]
            assert_same(mine, part, [*names, "master"], f"{format} {dim}")
        uneven(mesh, format, unit(format))
    load(mesh, "mxfp8_e4m3")
    load(mesh, "nvfp4")
    zero(mesh, "mxfp8_e4m3")
    zero(mesh, "fp8_e4m3_delayed")
    for format in STORAGES:
        broadcast(mesh, format)


def uneven(mesh, format, rows):
    """The last rank would have fewer, and all say so."""
    experts = torch.nn.Module()
    experts.w = torch.nn.Parameter(torch.randn(3, rows, rows))
    nc.convert(experts, format, filter=lambda name, module: True)
    for source in (0, None):
        with pytest.raises(ValueError, match=r"last part .* 1 experts.*module, or load, before"):
            distribute_tensor(experts.w.detach(), mesh, [Shard(0)], src_data_rank=source)


def broadcast(mesh, format):
    """All have the bytes and the master of the one that sends, whatever has been written before."""
    rank = mesh.get_local_rank()
    layers = [nc.convert(torch.nn.Linear(64, 64, bias=False), format) for _ in range(2)]
    with torch.no_grad():
        for layer in layers:
            layer.weight.fill_(1.0 + rank)
    dist.broadcast(layers[0].weight.detach(), 1)
    with torch.no_grad():
        layers[1].weight.fill_(2.0)
    assert_same(layers[0].weight, layers[1].weight, [*BUFFERS, "master"], format)


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
        if isinstance(w, nc.QuantizedTensor):
            assert_same(p, w, [*BUFFERS, "master"], format)
        else:
            assert same(p, w)


def load(mesh, format):
    """The state dict of a whole converted model into a sharded one."""
    whole, model = build(format), shard(build(format, seed=1), mesh)
    options = StateDictOptions(full_state_dict=True)
    set_model_state_dict(model, whole.state_dict(), options=options)
    assert same(loss_of(model, 0), loss_of(whole, 0)), format
    model.reshard()
    for p, w in zip(model.parameters(), whole.parameters(), strict=True):
        if isinstance(w, nc.QuantizedTensor):
            mine = p.to_local()
            assert same(mine.master, w.master.chunk(mesh.size())[mesh.get_local_rank()])


def test_distributed_weights():
    ranks.run(2, "cpu", distribute)


def load_alone(mesh):
    load(mesh, "mxfp8_e4m3")


def test_one_rank():
    ranks.run(1, "cpu", load_alone)


def full(mesh, name, trainable):
    torch.manual_seed(0)
    layer = nc.convert(nn.Linear(64, 128, bias=False), name, trainable=trainable)
    value = layer.weight.master if trainable else layer.weight.dequantize()
    value = value.detach().clone()
    fully_shard(layer, mesh=mesh)
    whole = layer.weight.full_tensor()
    assert type(whole) is torch.Tensor
    assert same(whole.detach(), value)
    if trainable:
        (2 * whole).sum().backward()
        assert same(layer.weight.grad.full_tensor(), torch.full((128, 64), 2.0))
        with torch.no_grad():
            whole.zero_()  # memory of its own
        assert same(layer.weight.full_tensor().detach(), value)


@pytest.mark.parametrize("trainable", [True, False])
@pytest.mark.parametrize("count", [1, 2])
def test_plain_tensors(format, count, trainable):
    ranks.run(count, "cpu", full, format, trainable)
