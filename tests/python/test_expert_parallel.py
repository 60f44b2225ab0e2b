"""Expert parallelism: experts cut over ranks as torchtitan cuts them, before and after nc.convert,
alone, with tensor parallelism and within fully_shard.
"""

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
)
from torch.distributed.tensor.parallel import ParallelStyle, parallelize_module

import narrowcast as nc
import ranks
from cut_weights import assert_part, assert_parts, give_gradients
from models import STORAGES, same, unit

COUNT, TOKENS = 4, 16  # experts; tokens of a rank, the same number for each expert


class GroupedExperts(nn.Module):
    """Weights [experts, out, in], multiplied in the order of the tokens' experts."""

    def __init__(self, width, hidden, grouped):
        super().__init__()
        self.grouped = grouped
        self.up = nn.Parameter(torch.randn(COUNT, hidden, width) / width**0.5)
        self.down = nn.Parameter(torch.randn(COUNT, width, hidden) / hidden**0.5)

    def forward(self, x):
        up, down = (w.to_local() if isinstance(w, DTensor) else w for w in (self.up, self.down))
        if self.grouped:
            ends = torch.arange(1, len(up) + 1, dtype=torch.int32) * (len(x) // len(up))
            hidden = F.grouped_mm(x, up.transpose(-2, -1), offs=ends)
            return F.grouped_mm(F.silu(hidden), down.transpose(-2, -1), offs=ends)
        parts = zip(x.chunk(len(up)), up, down, strict=True)
        return torch.cat([F.silu(one @ a.t()) @ b.t() for one, a, b in parts])


class Layer(nn.Module):
    """Each token goes to an expert by its place."""

    def __init__(self, width, grouped):
        super().__init__()
        self.gate = nn.Linear(width, width, bias=False)
        self.experts = GroupedExperts(width, 2 * width, grouped)

    def forward(self, x):
        return x + self.experts(self.gate(x))


class OverExperts(ParallelStyle):
    """Each rank has some experts, to which the tokens of all ranks go."""

    def _placements(self, name):
        return [Shard(0)]

    def _cut(self, path, module, mesh):
        for name, p in [*module.named_parameters(recurse=False)]:
            part = distribute_tensor(p, mesh, self._placements(name))
            module.register_parameter(name, nn.Parameter(part))

    def _send(self, module, inputs, mesh):
        group, count = self._group(mesh), mesh.size(0)
        here = all_to_all_single_autograd(*inputs, None, None, group)
        by_rank = here.view(count, COUNT // count, -1, here.shape[-1])
        return by_rank.transpose(0, 1).reshape(here.shape)

    def _back(self, module, outputs, mesh):
        count = mesh.size(0)
        by_expert = outputs.view(COUNT // count, count, -1, outputs.shape[-1])
        there = by_expert.transpose(0, 1).reshape(outputs.shape)
        return all_to_all_single_autograd(there, None, None, self._group(mesh))

    def _group(self, mesh):
        return mesh.get_group(0)

    def _apply(self, module, mesh):
        return distribute_module(module, mesh, self._cut, self._send, self._back)


class WithinExperts(OverExperts):
    """Each rank has some rows of each expert's up and some columns of its down."""

    def _placements(self, name):
        return [Shard(1) if name == "up" else Shard(2)]

    def _send(self, module, inputs, mesh):
        (x,) = inputs
        return DTensor.from_local(x, mesh, [Replicate()]).to_local(grad_placements=[Partial()])

    def _back(self, module, outputs, mesh):
        return DTensor.from_local(outputs, mesh, [Partial()]).full_tensor()


class Both(OverExperts):
    """Over the first dimension of a mesh, and within over the second."""

    def _placements(self, name):
        return [Shard(0), Shard(1) if name == "up" else Shard(2)]

    def _send(self, module, inputs, mesh):
        x = WithinExperts._send(self, module, inputs, mesh[mesh.mesh_dim_names[1]])
        return super()._send(module, (x,), mesh)

    def _back(self, module, outputs, mesh):
        outputs = WithinExperts._back(self, module, outputs, mesh[mesh.mesh_dim_names[1]])
        return super()._back(module, outputs, mesh)


def width_of(format):
    return 2 * unit(format)


def build_plain(format, grouped=True):
    torch.manual_seed(0)
    return Layer(width_of(format), grouped)


def build(mesh, format, style, converted_first, grouped=True, **options):
    plan = {"experts": style}
    if converted_first:
        model = nc.convert(build_plain(format, grouped), format, **options)
        return parallelize_module(model, mesh, plan)
    model = parallelize_module(build_plain(format, grouped), mesh, plan)
    return nc.convert(model, format, **options)


def batch(format, step, rank):
    generator = torch.Generator().manual_seed(97 * step + rank)
    return torch.randn(TOKENS, width_of(format), generator=generator)


def train(model, whole, format, rank, steps=2, optimizers=None, rounding="nearest"):
    """The whole model is given the same gradients."""
    options = {"lr": 1e-2, "rounding": rounding}
    optimizers = optimizers or [nc.FusedAdam(m.parameters(), **options) for m in (model, whole)]
    for step in range(steps):
        x = batch(format, step, rank)
        y = model(x)
        if step == 0:
            torch.testing.assert_close(y, whole(x))
        (y.square().sum() / 2**10).backward()
        if not isinstance(model.gate.weight, DTensor):  # whole, and of other tokens on each rank
            dist.all_reduce(model.gate.weight.grad)
        give_gradients(model, whole)
        for one in optimizers:
            one.step()
            one.zero_grad()
    assert_parts(model, whole, optimizers, format)
    return optimizers


def alone(mesh):
    rank = mesh.get_local_rank()
    for index, format in enumerate(STORAGES):
        for first in (False, True):
            whole, grouped = nc.convert(build_plain(format), format), bool(index % 2)
            model = build(mesh, format, OverExperts(), first, grouped)
            train(model, whole, format, rank, rounding="stochastic")
            whole = nc.convert(build_plain(format), format)
            train(build(mesh, format, WithinExperts(), first, grouped), whole, format, 0)
    for format in ("mxfp8_e4m3", "nvfp4"):
        for first in (False, True):
            written(mesh, format, first)
    frozen(mesh, "nvfp4")
    return refusals(mesh)


def written(mesh, format, first):
    """One rank alone writes to its experts: all make bytes of one amax in the next forward."""
    model = build(mesh, format, OverExperts(), first)
    whole = nc.convert(build_plain(format), format)
    with torch.no_grad():
        if mesh.get_local_rank() == 1:
            model.experts.up.to_local()[1].fill_(3.0)
        whole.experts.up[3].fill_(3.0)
        x = batch(format, 0, 0)
        torch.testing.assert_close(model(x), whole(x))
    assert_part(model.experts.up, whole.experts.up, ("rowwise_data", "amax"), format)


def frozen(mesh, format):
    """Without masters, for inference."""
    model = build(mesh, format, OverExperts(), True, trainable=False)
    whole = nc.convert(build_plain(format), format, trainable=False)
    x = batch(format, 0, mesh.get_local_rank())
    torch.testing.assert_close(model(x), whole(x))
    assert_part(model.experts.up, whole.experts.up, ("rowwise_data", "master"), format)


class Own(nn.Module):
    """Experts of so many rows."""

    def __init__(self, count, rows):
        super().__init__()
        self.experts = nn.Module()
        self.experts.w = nn.Parameter(torch.randn(count, rows, 64))


def refusals(mesh):
    """Each in both orders."""

    def message(error, count, rows, placements, first):
        def cut(path, module, mesh):
            if hasattr(module, "w"):
                part = distribute_tensor(module.w, mesh, placements)
                module.register_parameter("w", nn.Parameter(part))

        with pytest.raises(error) as caught:
            model = Own(count, rows)
            if first:
                nc.convert(model, "nvfp4")
            model = distribute_module(model, mesh, cut)
            nc.convert(model, "nvfp4")
        return str(caught.value)

    return [
        message(*case, first)
        for case in (
            (ValueError, 1, 64, [Shard(0)]),
            (ValueError, 4, 48, [Shard(1)]),
            (NotImplementedError, 4, 64, [Partial()]),
        )
        for first in (False, True)
    ]


def test_alone():
    first, second = ranks.run(2, "cpu", alone)
    assert first == second
    none, _, rows, cut, partial, _ = first
    assert "experts.w: 64x64 matrix in nvfp4 cannot be cut into 2 parts" in none
    assert "the first ranks would have 1 experts, and the last one none. Use 2 experts" in none
    for message in (rows, cut):
        assert "a part would have 24 rows, and each rank needs a multiple of 16" in message
    assert "experts.w is a DTensor of 3 dimensions with placements (Partial(sum),)" in partial


def sharded(mesh, folder):
    """Two dimensions: experts over ranks within fully_shard, and over and within."""
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("shard", "over"))
    rank = dist.get_rank()
    for format in STORAGES:
        first = bool(STORAGES.index(format) % 2)
        whole = nc.convert(build_plain(format), format)
        model = shard(build(grid["over"], format, OverExperts(), first), grid)
        train(model, whole, format, rank, rounding="stochastic")
    for format in ("mxfp8_e4m3", "nvfp4"):
        for first in (False, True):
            whole = nc.convert(build_plain(format), format)
            train(build(grid, format, Both(), first), whole, format, rank // 2)
        whole = nc.convert(build_plain(format), format)
        model = build(grid["over"], format, OverExperts(), True)
        model = shard(model, grid, shard_placement_fn=lambda p: Shard(1) if p.dim() > 2 else None)
        train(model, whole, format, rank)
        lone_write(grid, format)
        saved(grid, format, f"{folder}/{format}")


def shard(model, grid, **options):
    """As torchtitan does: the experts over what is left, all else over all ranks."""
    fully_shard(model.experts, mesh=grid["shard"], **options)
    return fully_shard(model, mesh=grid._flatten() if grid.ndim > 1 else grid, **options)


def lone_write(grid, format):
    """The amax is that of all four parts, whichever rank writes."""
    whole = nc.convert(build_plain(format), format)
    model = shard(build(grid["over"], format, OverExperts(), True), grid)
    x = batch(format, 0, dist.get_rank())
    model(x)
    model.reshard()
    model.experts.reshard()
    with torch.no_grad():
        if dist.get_rank() == 3:
            model.experts.up.to_local().fill_(3.0)
        whole.experts.up[3].fill_(3.0)
        torch.testing.assert_close(model(x), whole(x))


def saved(grid, format, folder):
    """A checkpoint over two dimensions goes into one over experts alone, and training goes on."""
    whole, rank = nc.convert(build_plain(format), format), dist.get_rank()
    model = shard(build(grid["over"], format, OverExperts(), True), grid)
    optimizers = train(model, whole, format, rank)
    full = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    for name, w in whole.named_parameters() if rank == 0 else ():
        assert same(full[name], w.master), name
    state = {"model": get_model_state_dict(model)}
    state["optimizer"] = get_optimizer_state_dict(model, optimizers[0])
    dcp.save(state, checkpoint_id=folder)
    other = build(init_device_mesh("cpu", (4,)), format, OverExperts(), True)
    optimizer = nc.FusedAdam(other.parameters(), lr=1e-2)
    state = {"model": get_model_state_dict(other)}
    state["optimizer"] = get_optimizer_state_dict(other, optimizer)
    dcp.load(state, checkpoint_id=folder)
    set_optimizer_state_dict(other, optimizer, state["optimizer"])
    for (name, p), w in zip(other.named_parameters(), whole.parameters(), strict=True):
        assert_part(p, w, ["master"], name)
    train(other, whole, format, rank, optimizers=[optimizer, optimizers[1]])


def test_within_fully_shard(tmp_path):
    ranks.run(4, "cpu", sharded, str(tmp_path))
