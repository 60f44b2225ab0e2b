"""parallelize_module and nc.convert in either order: each rank's part is that of the whole weight's
cast.
"""

import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.optim import AdamW

import narrowcast as nc
import ranks
from cut_weights import assert_part, assert_parts, give_gradients
from models import BUFFERS, STORAGES, same
from parallel_models import (
    SEQUENCE_PLAN,
    assert_trains_as_whole,
    batch,
    build,
    build_plain,
    message_of,
    width_of,
)


def alone(mesh):
    """One dimension: tensor parallelism without fully_shard."""
    for format in STORAGES:
        for first in (False, True):
            model = build(mesh, format, converted_first=first)
            assert_trains_as_whole(model, format, rounding="stochastic")
            assert_trains_as_whole(build(mesh, format, converted_first=first), format, AdamW)
            narrow_values(mesh, format, first)
    rank, scaled = mesh.get_local_rank(), {"matmul": "scaled"}
    for format in ("mxfp8_e4m3", "nvfp4"):
        assert_trains_as_whole(build(mesh, format, SEQUENCE_PLAN), format, sequence=rank)
        for first in (False, True):
            written(mesh, format, first)
            model = build(mesh, format, converted_first=first, **scaled)
            assert_trains_as_whole(model, format, **scaled)
            replicated(mesh, format, first)
        copied(mesh, format)
        on_meta(mesh, format)
        by_hand(mesh, format)
    embedded(mesh, "nvfp4")
    again(mesh, "nvfp4")
    return refusals(mesh)


def narrow_values(mesh, format, first):
    """Values in bfloat16, and their residuals, are those of the whole weights."""
    options = {"value_dtype": torch.bfloat16}
    model = build(mesh, format, converted_first=first, **options)
    whole = nc.convert(build_plain(format), format, **options)
    optimizers = [nc.optim.AdamW(one.parameters(), lr=1e-3) for one in (model, whole)]
    for step in range(3):
        torch.manual_seed(step)
        for p, w in zip(model.parameters(), whole.parameters(), strict=True):
            gradient = w.grad = torch.randn(w.shape).to(w.dtype)
            is_cut = isinstance(p, DTensor)
            p.grad = distribute_tensor(gradient, mesh, p.placements) if is_cut else gradient
        for one in optimizers:
            one.step()
    assert model.up.weight.to_local().value.dtype == torch.bfloat16
    assert optimizers[1].state[whole.up.weight]["residual"].count_nonzero() > 0
    assert_parts(model, whole, optimizers, format)


def written(mesh, format, first):
    """All write, and make bytes of the amax of all, when the model is next called."""
    model = build(mesh, format, converted_first=first)
    whole = nc.convert(build_plain(format), format)
    with torch.no_grad():
        model.up.weight.to_local()[:32].fill_(2.0 + mesh.get_local_rank())
        for rank in range(mesh.size()):
            begin = rank * width_of(format)
            whole.up.weight[begin : begin + 32].fill_(2.0 + rank)
        torch.testing.assert_close(model(batch(format, 0)), whole(batch(format, 0)))
    assert_part(model.up.weight, whole.up.weight, BUFFERS, format)
    for one in (model, whole):
        nn.init.constant_(one.down.weight, 0.5)
    model(batch(format, 0))
    assert_part(model.down.weight, whole.down.weight, BUFFERS, format)


def copied(mesh, format):
    """Copies, and a state dict of whole values into another model."""
    model = build(mesh, format)
    state = {
        name: value.full_tensor() if isinstance(value, DTensor) else value
        for name, value in model.state_dict().items()
    }
    assert type(state["up.weight"]) is torch.Tensor
    other = copy.deepcopy(build(mesh, format))
    with torch.no_grad():
        for p in other.parameters():
            p.zero_()
        for name, p in other.named_parameters():
            sharded = isinstance(p, DTensor)
            where = (p.device_mesh, p.placements) if sharded else ()
            p.copy_(distribute_tensor(state[name], *where) if sharded else state[name])
    x = batch(format, 0)
    assert same(model(x), other(x))


def on_meta(mesh, format):
    """Converted and cut before there are any values, as torchtitan does."""
    with torch.device("meta"):
        model = build(mesh, format, converted_first=True)
    model.to_empty(device="cpu")
    with torch.no_grad():
        for p, value in zip(model.parameters(), build_plain(format).parameters(), strict=True):
            sharded = isinstance(p, DTensor)
            where = (p.device_mesh, p.placements) if sharded else ()
            p.copy_(distribute_tensor(value.detach(), *where) if sharded else value)
    assert_trains_as_whole(model, format)


def by_hand(mesh, format):
    """Without parallelize_module."""
    model = nc.convert(build_plain(format), format)
    whole = nc.convert(build_plain(format), format)
    for name, dim in (("weight", 0), ("bias", 0)):
        value = getattr(model.up, name)
        part = nn.Parameter(distribute_tensor(value, mesh, [Shard(dim)], src_data_rank=None))
        setattr(model.up, name, part)
    x = batch(format, 0)
    y = model.up(DTensor.from_local(x, mesh, [Replicate()]))
    torch.testing.assert_close(y.full_tensor(), whole.up(x))
    assert_part(model.up.weight, whole.up.weight, BUFFERS, format)


def replicated(mesh, format, first):
    """Weights that every rank has whole, and parts of a batch."""
    if first:
        model = distribute_module(nc.convert(build_plain(format), format), mesh)
    else:
        model = nc.convert(distribute_module(build_plain(format), mesh), format)
    whole = nc.convert(build_plain(format), format)
    x = batch(format, 0)
    y = model(distribute_tensor(x, mesh, [Shard(0)]))
    assert same(y.full_tensor(), whole(x))
    optimizers = [nc.FusedAdam(m.parameters(), lr=1e-2) for m in (model, whole)]
    y.sum().backward()
    for p, w in zip(model.parameters(), whole.parameters(), strict=True):
        w.grad = p.grad.full_tensor()
    for one in optimizers:
        one.step()
    for p, w in zip(model.parameters(), whole.parameters(), strict=True):
        assert_part(p, w, BUFFERS, format)


def again(mesh, format):
    """Made plain, and converted again; and converted on meta after it was cut."""
    model, x = build(mesh, format, converted_first=True), batch(format, 0)
    before = model(x)
    nc.convert(nc.to_plain(model), format)
    assert same(model(x), before)
    with torch.device("meta"):
        later = build(mesh, format)
    assert isinstance(later.up.weight.to_local(), nc.MasterWeight)
    layer = nc.convert(nn.Linear(*reversed(model.up.weight.shape)), format)
    layer.register_parameter("weight", nn.Parameter(model.up.weight.detach()))
    assert isinstance(layer, type(model.up))


def embedded(mesh, format):
    """Every rank has the whole gradient of an embedding that is cut into rows."""

    def plain():
        torch.manual_seed(0)
        return nn.Sequential(nn.Embedding(32, 64), nn.Linear(64, 64))

    plan = {"0": RowwiseParallel(input_layouts=Replicate()), "1": ColwiseParallel()}
    model, whole = (
        parallelize_module(nc.convert(plain(), format), mesh, plan),
        nc.convert(plain(), format),
    )
    optimizers = [nc.FusedAdam(m.parameters(), lr=1e-2) for m in (model, whole)]
    tokens = torch.arange(0, 32, 3)
    for _ in range(2):
        model(tokens).square().sum().backward()
        give_gradients(model, whole)
        for one in optimizers:
            one.step()
            one.zero_grad()
    assert model[0].weight.placements == (Shard(0),)
    assert_parts(model, whole, optimizers, format)


class OwnLinear(nn.Linear):
    def forward(self, x):
        return F.linear(x, self.weight)


def refusals(mesh):
    def converted(layer, style):
        return nc.convert(parallelize_module(nn.Sequential(layer), mesh, {"0": style}), "nvfp4")

    def cut(layer, style):
        parallelize_module(nc.convert(nn.Sequential(layer), "nvfp4"), mesh, {"0": style})

    def stochastic():
        model = build(mesh, "mxfp8_e4m3")
        optimizer = nc.FusedAdam(model.parameters(), rounding="stochastic")
        model(batch("mxfp8_e4m3", 0)).sum().backward()
        optimizer.step()

    def not_prepared():
        layer = nn.Linear(64, 64)
        layer.weight = nn.Parameter(distribute_tensor(layer.weight.detach(), mesh, [Shard(0)]))
        nc.convert(nn.Sequential(layer), "nvfp4")(torch.ones(2, 64))

    return {
        "rows": message_of(ValueError, converted, nn.Linear(64, 48), ColwiseParallel()),
        "columns": message_of(ValueError, converted, nn.Linear(48, 64), RowwiseParallel()),
        "forward": message_of(NotImplementedError, converted, OwnLinear(64, 64), ColwiseParallel()),
        "stochastic": message_of(NotImplementedError, stochastic),
        "input": message_of(TypeError, not_prepared),
        "cut rows": message_of(ValueError, cut, nn.Linear(64, 48), ColwiseParallel()),
    }


def test_tensor_parallelism():
    first, second = ranks.run(2, "cpu", alone)
    assert first == second
    for name, words in {
        "rows": ("0.weight", "24 rows", "multiple of 16"),
        "columns": ("0.weight", "24 columns", "multiple of 16"),
        "forward": ("OwnLinear", "filter"),
        "stochastic": ('rounding="nearest"',),
        "input": ("0.weight", "parallelize_module"),
        "cut rows": ("0.weight", "24 rows", "multiple of 16"),
    }.items():
        assert all(word in first[name] for word in words), first[name]
