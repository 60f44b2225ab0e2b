"""How a sharded model is made: converted late, built on meta, built on the CPU for GPUs, or in a
FakeTensorMode, with which memory is estimated before a run.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard

import narrowcast as nc
import ranks
from internals import config_of
from models import (
    GATHERS,
    SHARDINGS,
    assert_equal_state,
    assert_quantized,
    assert_same,
    build,
    build_plain,
    loss_of,
    one_of_each,
    shard,
    train,
    unit,
)

TESTED_FORMATS = SHARDINGS


@pytest.mark.parametrize(("world", "forward_first"), [(1, False), (2, True)])
@ranks.on("world")
def test_convert_after_fully_shard(mesh, format, forward_first):
    """convert after fully_shard, even after a forward, is convert before it."""
    device = mesh.device_type
    before, after = shard(build(format, device), mesh), shard(build_plain(format, device), mesh)
    if forward_first:
        loss_of(after, 0, device).backward()
        after.zero_grad()
    parameters = list(after.parameters())
    assert nc.convert(after, format) is after
    assert all(a is b for a, b in zip(after.parameters(), parameters, strict=True))
    optimizers = [nc.FusedAdam(m.parameters(), lr=1e-2) for m in (before, after)]
    losses = [train(m, o, 3, device) for m, o in zip((before, after), optimizers, strict=True)]
    assert losses[0] == losses[1]
    for p, q in zip(before.parameters(), after.parameters(), strict=True):
        if isinstance(p.to_local(), nc.MasterWeight):
            assert config_of(q).name == config_of(p).name
            assert_same(q.to_local(), p.to_local())


@pytest.mark.parametrize("world", [1, 2])
@ranks.on("world")
def test_meta_initialisation(mesh, format):
    """Built without memory, sharded, and only then given values."""
    device = mesh.device_type
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256))
    fully_shard(nc.convert(model, format), mesh=mesh)
    model.to_empty(device=device)
    for layer in (model[0], model[2]):
        torch.manual_seed(mesh.get_local_rank())
        layer.reset_parameters()
    optimizer = nc.FusedAdam(model.parameters(), lr=1e-2)
    optimizer.make_state()
    masters = [model[i].weight.full_tensor() for i in (0, 2)]
    x = torch.randn(8, 256, device=device)
    for _ in range(2):
        for i, master in zip((0, 2), masters, strict=True):
            model.unshard()
            # Of one rank it is the weight itself.
            assert_quantized(model[i].weight.detach(), getattr(master, "value", master))
            model.reshard()
        F.mse_loss(model(x), x).backward()
        optimizer.step()
        optimizer.zero_grad()
        model.reshard()
        masters = [model[i].weight.full_tensor() for i in (0, 2)]


def built_elsewhere(mesh, format):
    """A model on the CPU, sharded on GPUs: FSDP2 moves its parameters."""
    whole = build(format).cuda()
    model = shard(build(format), mesh)
    optimizer, whole_optimizer = (nc.FusedAdam(m.parameters(), lr=1e-2) for m in (model, whole))
    assert train(model, optimizer, 3, "cuda") == train(whole, whole_optimizer, 3, "cuda")
    assert_equal_state(model, optimizer, whole, whole_optimizer, mesh)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("world", [1, 2])
def test_built_on_the_cpu_sharded_on_gpus(format, world):
    ranks.run(world, "cuda", built_elsewhere, format)


OPTIONS = {"rows": {}, "columns": {"shard_placement_fn": lambda _: Shard(1)}}


CUTS = ["rows within blocks", "columns"]
CASES = [(name, "rows", "dequantized") for name in TESTED_FORMATS]
CASES += [(name, cut, "dequantized") for name in GATHERS for cut in CUTS]
PRODUCTS = one_of_each(lambda f: f.matmul and (f.gather, f.matmul.stochastic_gradient))
CASES += [(name, "rows", "scaled") for name in PRODUCTS if nc.format(name).matmul is not None]


@pytest.mark.parametrize(("name", "cut", "matmul"), CASES)
@ranks.on(2, "cpu")
def test_an_estimate(mesh, name, cut, matmul):
    width = 2 * unit(name) if cut != "rows within blocks" else 80
    with FakeTensorMode():
        model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(2)))
        nc.convert(model, name, matmul=matmul)
        for module in (*model, model):
            fully_shard(module, mesh=mesh, **OPTIONS.get(cut, {}))
        optimizer = nc.FusedAdam(model.parameters())
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(8, width)).sum().backward()
            optimizer.step()
    weight = model[0].weight
    moments = optimizer.state[weight]["exp_avg"].shape, weight.grad.shape
    assert moments == (weight.shape, weight.shape)
