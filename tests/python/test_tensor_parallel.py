"""parallelize_module and nc.convert in either order, then perhaps fully_shard: each rank's part is
that of the whole weight's cast.
"""

import copy
import gc
import itertools
import weakref

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import (
    DTensor,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
)
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import narrowcast as nc
import ranks
from cut_weights import BY_SHARD, EVERY, assert_part, assert_parts, give_gradients
from models import STORAGES, one_of_each, same, unit
from narrowcast.tensor import dtensors

PLAN = {"up": ColwiseParallel(), "down": RowwiseParallel()}
SEQUENCE_PLAN = {
    "norm": SequenceParallel(),
    "up": ColwiseParallel(input_layouts=Shard(1)),
    "down": RowwiseParallel(output_layouts=Shard(1)),
}


# Of what ranks reduce where they share blocks.
SHARING = one_of_each(lambda f: (f.tensor_amax, f.rowwise.element_bits, f.amax, f.row_step))


class Layer(nn.Module):
    def __init__(self, width, hidden=None, bias=True):
        super().__init__()
        hidden = hidden or 2 * width
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, hidden, bias=bias)
        self.down = nn.Linear(hidden, width, bias=bias)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


def width_of(format):
    return 2 * unit(format)


def build_plain(format, size=None):
    """`size`: of the layer, its width and perhaps what is hidden."""
    torch.manual_seed(0)
    return Layer(*(size or (width_of(format),)))


def build(mesh, format, plan=PLAN, converted_first=False, size=None, **options):
    plain = build_plain(format, size)
    if converted_first:
        return parallelize_module(nc.convert(plain, format, **options), mesh, plan)
    return nc.convert(parallelize_module(plain, mesh, plan), format, **options)


def batch(format, step, shape=(2, 8), size=None):
    generator = torch.Generator().manual_seed(step)
    width, *_ = size or (width_of(format),)
    return torch.randn(*shape, width, generator=generator)


def assert_trains_as_whole(model, format, sequence=None, rounding="nearest", size=None, **options):
    """The whole model is given the same gradients: sums over ranks round."""
    whole = nc.convert(build_plain(format, size), format, **options)
    optimizers = [nc.FusedAdam(groups_of(m, rounding), lr=1e-2) for m in (model, whole)]
    for step in range(3):
        x = batch(format, step, size=size)
        mine = x if sequence is None else x.chunk(2, 1)[sequence]
        y = model(mine)
        if step == 0 and options.get("products") != "scaled":
            expected = whole(x) if sequence is None else whole(x).chunk(2, 1)[sequence]
            torch.testing.assert_close(y, expected)
        (y.square().sum() / 2**10).backward()
        give_gradients(model, whole)
        for one in optimizers:
            one.step()
            one.zero_grad()
    assert_parts(model, whole, optimizers, format)
    return model, optimizers[0], whole


def groups_of(model, rounding):
    """Weights whose rows are cut can be rounded stochastically."""
    down = model.down.weight
    rest = [p for p in model.parameters() if p is not down]
    return [{"params": rest, "rounding": rounding}, {"params": [down]}]


def alone(mesh):
    """One dimension: tensor parallelism without fully_shard."""
    for format in STORAGES:
        for first in (False, True):
            model = build(mesh, format, converted_first=first)
            assert_trains_as_whole(model, format, rounding="stochastic")
    rank, scaled = mesh.get_local_rank(), {"products": "scaled"}
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
    compiled(mesh, "mxfp8_e4m3")
    blocks_compiled(mesh, "nvfp4")
    embedded(mesh, "nvfp4")
    in_a_list(mesh, "nvfp4")
    copied_on_meta(mesh, "nvfp4")
    again(mesh, "nvfp4")
    return refusals(mesh)


def written(mesh, format, first):
    """One rank alone writes: all make bytes of the amax of all, when the model is next called."""
    model = build(mesh, format, converted_first=first)
    whole = nc.convert(build_plain(format), format)
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
    assert_part(model.up.weight, whole.up.weight, EVERY, format)


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


def blocks_compiled(mesh, format):
    """As torchtitan does, with checkpointing: agreements about writes are outside of graphs, and in
    no forward that a backward runs again.
    """
    model = nn.Sequential(build_plain(format), build_plain(format))
    nc.convert(model, format)
    torch._dynamo.reset()
    for index in range(2):
        parallelize_module(model[index], mesh, PLAN)
        model[index].compile(backend="aot_eager", fullgraph=True)
        model[index] = checkpoint_wrapper(model[index])
    x = batch(format, 0)
    model(x).sum().backward()
    assert_copies_agree(mesh, model, x, direct=False)


class Stack(nn.Module):
    def __init__(self, format):
        super().__init__()
        self.layers = nn.ModuleList(build_plain(format) for _ in range(2))

    def __getitem__(self, index):
        return self.layers[index]

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def copied_on_meta(mesh, format):
    """torchtitan's order with pipelines: a copy, cut, whose blocks are compiled."""
    whole = Stack(format)
    with torch.device("meta"):
        model = Stack(format)
    nc.convert(model, format)
    model = copy.deepcopy(model)
    for index in range(2):
        parallelize_module(model.layers[index], mesh, PLAN)
    model.to_empty(device="cpu")
    with torch.no_grad():
        for p, value in zip(model.parameters(), whole.parameters(), strict=True):
            p.copy_(
                distribute_tensor(value, p.device_mesh, p.placements)
                if isinstance(p, DTensor)
                else value
            )
    torch._dynamo.reset()
    for index in range(2):
        model.layers[index].compile(backend="aot_eager", fullgraph=True)
    assert_copies_agree(mesh, model, batch(format, 0))


def again(mesh, format):
    """Made plain, and converted again; and converted on meta after it was cut."""
    model, x = build(mesh, format, converted_first=True), batch(format, 0)
    before = model(x)
    nc.convert(nc.to_plain(model), format)
    assert same(model(x), before)
    with torch.device("meta"):
        later = build(mesh, format)
    assert isinstance(later.up.weight.to_local(), nc.QuantizedTensor)
    layer = nn.Linear(*reversed(model.up.weight.shape))
    layer.register_parameter("weight", nn.Parameter(model.up.weight.detach()))
    assert isinstance(layer, type(model.up))


def in_a_list(mesh, format):
    """nc.convert of a list, whose forward nobody calls; and a layer that is taken out of it."""
    model = Stack(format)
    nc.convert(model.layers, format)
    for index in range(2):
        parallelize_module(model.layers[index], mesh, PLAN)
    x = batch(format, 0)
    assert_copies_agree(mesh, model, x)
    copied = copy.deepcopy(model)
    last = weakref.ref(model.layers[1].up)
    del model.layers[1]
    gc.collect()
    assert last() is None
    model(x)
    assert_copies_agree(mesh, copied, x)


def assert_copies_agree(mesh, model, x, direct=True):
    """A rank's write is in the next forward of all. `direct`: of a layer by itself, too."""
    before = model(x)
    with torch.no_grad():
        if mesh.get_local_rank() == 1:
            model[1].up.weight.to_local().fill_(before.abs().max().item())
    after = model(x)
    assert not same(before, after)
    parts = [torch.empty_like(after) for _ in range(mesh.size())]
    dist.all_gather(parts, after.detach())
    assert all(same(part, after) for part in parts)
    if not direct:
        return
    inner = model[0].up(x)  # called by itself
    with torch.no_grad():
        if mesh.get_local_rank() == 0:
            model[0].up.weight.to_local().fill_(inner.abs().max().item() + 1)
    assert not same(model[0].up(x), inner)


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
        "empty": message_of(ValueError, converted, nn.Linear(64, 16), ColwiseParallel()),
        "forward": message_of(NotImplementedError, converted, OwnLinear(64, 64), ColwiseParallel()),
        "stochastic": message_of(NotImplementedError, stochastic),
        "input": message_of(TypeError, not_prepared),
        "cut rows": message_of(ValueError, cut, nn.Linear(64, 48), ColwiseParallel()),
        "cut columns": message_of(ValueError, cut, nn.Linear(48, 64), RowwiseParallel()),
        "cut forward": message_of(NotImplementedError, cut, OwnLinear(64, 64), ColwiseParallel()),
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
        "cut rows": ("0.weight", "24 rows", "multiple of 16"),
        "cut columns": ("0.weight", "24 columns", "multiple of 16"),
        "cut forward": ("0.weight", "OwnLinear", "filter"),
    }.items():
        assert all(word in first[name] for word in words), first[name]


def sharded(mesh):
    """Two dimensions: tensor parallelism within fully_shard."""
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("shard", "parallel"))
    rank = grid["parallel"].get_local_rank()
    fitting = [format for format in STORAGES if nc.format(format).row_step <= 32]
    for format, first in itertools.product(fitting, (False, True)):
        model = fully_shard(
            build(grid["parallel"], format, converted_first=first), mesh=grid["shard"]
        )
        assert_trains_as_whole(model, format, rounding="stochastic")
    for format in SHARING:
        if nc.format(format).shard_row_step > 1 and not nc.format(format).is_delayed:
            straddled(grid, format)
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

    forgotten(grid, "nvfp4")
    in_a_style(grid)
    return message_of(NotImplementedError, convert_last)


def forgotten(grid, format):
    """fully_shard of a model that has been used: nobody keeps what was there before."""
    model, x = build(grid["parallel"], format, converted_first=True), batch(format, 0)
    model(x)
    master = weakref.ref(model.up.weight.to_local()._store.master.value)
    fully_shard(model, mesh=grid["shard"])
    model(x)
    gc.collect()
    assert master() is None


class Sharding(ParallelStyle):
    def _apply(self, module, mesh):
        return fully_shard(module, mesh=mesh)


def in_a_style(grid):
    """fully_shard called by parallelize_module; it cuts blocks as ever."""
    model = nc.convert(nn.Sequential(nn.Linear(64, 96)), "mxfp8_e4m3")
    parallelize_module(model, grid["shard"], {"0": Sharding()})
    assert model[0].weight.to_local()._store.place is not None


def straddled(grid, format):
    """fully_shard cuts the parts within blocks."""
    size = (3 * unit(format),)
    divided = size[0] // 2 % nc.format(format).shard_row_step != 0
    for rounding in ("nearest", "stochastic"):
        model = build(grid["parallel"], format, converted_first=rounding == "nearest", size=size)
        assert_shares_blocks(grid, model, [divided, divided])
        assert_gathers_as_whole(model, format, rounding, size)
    lone_write(grid, format, size)


def assert_shares_blocks(grid, model, divided):
    fully_shard(model, mesh=grid["shard"])
    places = [p.to_local()._store.place for p in (model.up.weight, model.down.weight)]
    assert [place is not None for place in places] == divided


def assert_gathers_as_whole(model, format, rounding, size):
    *_, whole = assert_trains_as_whole(model, format, rounding=rounding, size=size)
    model.unshard()
    for name in ("up", "down"):
        part, weight = getattr(model, name).weight, getattr(whole, name).weight
        assert_part(part, weight, ["rowwise_data", "rowwise_scale_inv", "amax"], name)


def unequal(mesh):
    """Three parts, of which fully_shard cuts the last one within blocks, for it has fewer rows."""
    grid = init_device_mesh("cpu", (2, 3), mesh_dim_names=("shard", "parallel"))
    for format in SHARING:
        f = nc.format(format)
        if f.shard_row_step == 1 or f.is_delayed or f.rowwise.element_bits == 6:
            continue
        rows = 2 * max(f.row_step, f.shard_row_step)
        size = width_of(format), 3 * rows - 2
        divided = [True, size[0] // 2 % f.shard_row_step != 0]
        for rounding in ("nearest", "stochastic"):
            model = build(grid["parallel"], format, size=size)
            assert_shares_blocks(grid, model, divided)
            assert_gathers_as_whole(model, format, rounding, size)


def test_unequal_parts_share_blocks():
    ranks.run(6, "cpu", unequal)


def lone_write(grid, format, size=None):
    """The amax is that of all four parts, whichever rank writes."""
    whole = nc.convert(build_plain(format, size), format)
    model = fully_shard(build(grid["parallel"], format, size=size), mesh=grid["shard"])
    x = batch(format, 0, size=size)
    model(x)
    model.reshard()
    with torch.no_grad():
        if dist.get_rank() == 3:
            model.up.weight.to_local().fill_(3.0)
        rows = len(model.up.weight.to_local())
        value = whole.up.weight.master.clone()
        value[3 * rows :] = 3.0
        whole.up.weight.copy_(value)
        torch.testing.assert_close(model(x), whole(x))
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
    assert "before fully_shard, in either order with parallelize_module" in messages[0]
