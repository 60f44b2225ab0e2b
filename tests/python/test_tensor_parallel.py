"""parallelize_module, then nc.convert, then perhaps fully_shard: each rank's part is that of the
whole weight's cast.
"""

import copy

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import narrowcast as nc
import ranks
from models import BUFFERS, STORAGES, assert_same, same, unit
from narrowcast.tensor import dtensors

PLAN = {"up": ColwiseParallel(), "down": RowwiseParallel()}
SEQUENCE_PLAN = {
    "norm": SequenceParallel(),
    "up": ColwiseParallel(input_layouts=Shard(1)),
    "down": RowwiseParallel(output_layouts=Shard(1)),
}
BY_SHARD = ("rowwise_data", "rowwise_scale_inv", "amax", "history", "master")


class Layer(nn.Module):
    def __init__(self, width, bias=True):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width, bias=bias)
        self.down = nn.Linear(2 * width, width, bias=bias)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


def width_of(format):
    return 2 * unit(format)


def build_plain(format):
    torch.manual_seed(0)
    return Layer(width_of(format))


def build(mesh, format, plan=PLAN, **options):
    return nc.convert(parallelize_module(build_plain(format), mesh, plan), format, **options)


def batch(format, step, shape=(2, 8)):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(*shape, width_of(format), generator=generator)


def part_of(whole, parameter):
    """What this rank has of a whole tensor."""
    shape, offset = dtensors.box(parameter)
    for dim, (size, begin) in enumerate(zip(shape, offset, strict=True)):
        whole = whole.narrow(dim, begin, size)
    return whole


def assert_part(parameter, whole, names, what):
    local = dtensors.local_of(parameter)
    if not isinstance(local, nc.QuantizedTensor):
        assert same(local, part_of(whole.detach(), parameter)), what
        return
    part = part_of(whole.detach(), parameter)
    names = [name for name in names if getattr(local, name) is not None]
    assert_same(local, part, [name for name in names if name != "history"], what)
    assert same(local.history, whole.history), what


def assert_trains_as_whole(model, format, sequence=None, rounding="nearest", **options):
    """The whole model is given the same gradients: sums over ranks round."""
    whole = nc.convert(build_plain(format), format, **options)
    optimizers = [nc.FusedAdam(groups_of(m, rounding), lr=1e-2) for m in (model, whole)]
    for step in range(3):
        x = batch(format, step)
        mine = x if sequence is None else x.chunk(2, 1)[sequence]
        y = model(mine)
        if step == 0 and options.get("products") != "scaled":
            expected = whole(x) if sequence is None else whole(x).chunk(2, 1)[sequence]
            torch.testing.assert_close(y, expected)
        (y.square().sum() / 2**10).backward()
        gradients = [p.grad for p in model.parameters()]
        for w, gradient in zip(whole.parameters(), gradients, strict=True):
            w.grad = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient.clone()
        for one in optimizers:
            one.step()
            one.zero_grad()
    names = BY_SHARD if isinstance(model, nn.Module) and hasattr(model, "reshard") else EVERY
    for (name, p), w in zip(model.named_parameters(), whole.parameters(), strict=True):
        assert_part(p, w, names, f"{format} {name}")
        for key in ("exp_avg", "exp_avg_sq"):
            states = [one.state[q][key] for one, q in zip(optimizers, (p, w), strict=True)]
            assert same(dtensors.local_of(states[0]), part_of(states[1], p)), (format, name, key)
    return model, optimizers[0], whole


EVERY = (*BUFFERS, "history", "master")


def groups_of(model, rounding):
    """Weights whose rows are cut can be rounded stochastically."""
    down = model.down.weight
    rest = [p for p in model.parameters() if p is not down]
    return [{"params": rest, "rounding": rounding}, {"params": [down]}]


def alone(mesh):
    """One dimension: tensor parallelism without fully_shard."""
    for format in STORAGES:
        assert_trains_as_whole(build(mesh, format), format, rounding="stochastic")
    rank = mesh.get_local_rank()
    for format in ("mxfp8_e4m3", "nvfp4"):
        assert_trains_as_whole(build(mesh, format, SEQUENCE_PLAN), format, sequence=rank)
        written(mesh, format)
        copied(mesh, format)
    scaled = {"products": "scaled"}
    assert_trains_as_whole(build(mesh, "mxfp8_e4m3", **scaled), "mxfp8_e4m3", **scaled)
    replicated(mesh, "nvfp4")
    compiled(mesh, "mxfp8_e4m3")
    return refusals(mesh)


def written(mesh, format):
    """One rank alone writes: all make bytes of the amax of all, when the model is next called."""
    model, whole = build(mesh, format), nc.convert(build_plain(format), format)
    with torch.no_grad():
        if mesh.get_local_rank() == 1:
            model.up.weight.to_local()[:32].fill_(3.0)
        begin = width_of(format)
        whole.up.weight[begin : begin + 32].fill_(3.0)
        torch.testing.assert_close(model(batch(format, 0)), whole(batch(format, 0)))
    assert_part(model.up.weight, whole.up.weight, EVERY, format)
    for one in (model, whole):
        nn.init.eye_(one.down.weight)
    model(batch(format, 0))
    assert_part(model.down.weight, whole.down.weight, EVERY, format)


def copied(mesh, format):
    """Copies, and a state dict of whole masters into another model."""
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


def replicated(mesh, format):
    """Weights that every rank has whole, and parts of a batch."""
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
        assert_part(p, w, EVERY, format)


def compiled(mesh, format):
    model, x = build(mesh, format), batch(format, 0)
    eager = model(x)
    eager.sum().backward()
    gradients = [p.grad for p in model.parameters()]
    model.zero_grad()
    result = torch.compile(model, backend="aot_eager")(x)
    result.sum().backward()
    assert same(result, eager)
    for p, gradient in zip(model.parameters(), gradients, strict=True):
        assert same(dtensors.local_of(p.grad), dtensors.local_of(gradient))


def message_of(error, function, *arguments):
    with pytest.raises(error) as caught:
        function(*arguments)
    return str(caught.value)


class OwnLinear(nn.Linear):
    def forward(self, x):
        return F.linear(x, self.weight)


def refusals(mesh):
    def converted(layer, style):
        return nc.convert(parallelize_module(nn.Sequential(layer), mesh, {"0": style}), "nvfp4")

    def stochastic():
        model = build(mesh, "mxfp8_e4m3")
        optimizer = nc.FusedAdam(model.parameters(), rounding="stochastic")
        model(batch("mxfp8_e4m3", 0)).sum().backward()
        optimizer.step()

    def not_prepared():
        layer = nn.Linear(64, 64)
        layer.weight = nn.Parameter(distribute_tensor(layer.weight.detach(), mesh, [Shard(0)]))
        nc.convert(nn.Sequential(layer), "nvfp4")(torch.ones(2, 64))

    def order():
        parallelize_module(nc.convert(build_plain("nvfp4"), "nvfp4"), mesh, PLAN)

    return {
        "rows": message_of(ValueError, converted, nn.Linear(64, 48), ColwiseParallel()),
        "columns": message_of(ValueError, converted, nn.Linear(48, 64), RowwiseParallel()),
        "empty": message_of(ValueError, converted, nn.Linear(64, 16), ColwiseParallel()),
        "forward": message_of(NotImplementedError, converted, OwnLinear(64, 64), ColwiseParallel()),
        "stochastic": message_of(NotImplementedError, stochastic),
        "input": message_of(TypeError, not_prepared),
        "order": message_of(NotImplementedError, order),
    }


def test_tensor_parallelism():
    first, second = ranks.run(2, "cpu", alone)
    assert first == second
    for name, words in {
        "rows": ("0.weight", "24 rows", "multiple of 16"),
        "columns": ("0.weight", "24 columns", "multiple of 16"),
        "empty": ("8 rows",),
        "forward": ("OwnLinear", "filter"),
        "stochastic": ('rounding="nearest"',),
        "input": ("0.weight", "parallelize_module"),
        "order": ("plain model, then nc.convert",),
    }.items():
        assert all(word in first[name] for word in words), first[name]


def sharded(mesh):
    """Two dimensions: tensor parallelism within fully_shard."""
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("shard", "parallel"))
    rank = grid["parallel"].get_local_rank()
    for format in STORAGES:
        if nc.format(format).row_step <= 32:
            model = fully_shard(build(grid["parallel"], format), mesh=grid["shard"])
            assert_trains_as_whole(model, format, rounding="stochastic")
    for format in ("mxfp8_e4m3", "nvfp4"):
        model = build(grid["parallel"], format, SEQUENCE_PLAN)
        fully_shard(model, mesh=grid["shard"], reshard_after_forward=False)
        assert_trains_as_whole(model, format, sequence=rank)
        lone_write(grid, format)
    hybrid = init_device_mesh("cpu", (2, 1, 2), mesh_dim_names=("replica", "shard", "parallel"))
    model = build(hybrid["parallel"], "nvfp4")
    fully_shard(model, mesh=hybrid["replica", "shard"])
    assert_trains_as_whole(model, "nvfp4")
    mixed(grid, "mxfp8_e4m3")
    pair = dtensors._joint_group((rank, rank + 2))
    assert dist.get_process_group_ranks(pair) == [rank, rank + 2]
    assert pair is dtensors._joint_group((rank, rank + 2))

    def convert_last():
        model = parallelize_module(build_plain("nvfp4"), grid["parallel"], PLAN)
        nc.convert(fully_shard(model, mesh=grid["shard"]), "nvfp4")

    return message_of(NotImplementedError, convert_last)


def lone_write(grid, format):
    """The amax is that of all four parts, whichever rank writes."""
    model, whole = build(grid["parallel"], format), nc.convert(build_plain(format), format)
    fully_shard(model, mesh=grid["shard"])
    model(batch(format, 0))
    model.reshard()
    with torch.no_grad():
        if dist.get_rank() == 3:
            model.up.weight.to_local().fill_(3.0)
        rows = len(model.up.weight.to_local())
        whole.up.weight[3 * rows :].fill_(3.0)
        torch.testing.assert_close(model(batch(format, 0)), whole(batch(format, 0)))
    model.reshard()
    assert_part(model.up.weight, whole.up.weight, BY_SHARD, format)


def mixed(grid, format):
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = fully_shard(build(grid["parallel"], format), mesh=grid["shard"], mp_policy=policy)
    optimizer = nc.FusedAdam(model.parameters(), lr=1e-2)
    for step in range(2):
        loss = model(batch(format, step)).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert loss.isfinite()


def test_tensor_parallelism_within_fully_shard():
    messages = ranks.run(4, "cpu", sharded)
    assert len(set(messages)) == 1
    assert "between parallelize_module and fully_shard" in messages[0]
