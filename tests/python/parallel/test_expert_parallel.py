"""Expert parallelism: experts cut over ranks as torchtitan cuts them, before and after nc.convert,
alone, with tensor parallelism and within fully_shard.
"""

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Shard, distribute_tensor

import narrowcast as nc
import ranks
from cut_weights import assert_part, assert_parts, give_gradients
from expert_parallel_models import Both, OverExperts, WithinExperts, batch, build, build_plain
from models import STORAGES, same


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
    """Ranks write to their experts: all make bytes of one amax in the next forward."""
    model = build(mesh, format, OverExperts(), first)
    whole = nc.convert(build_plain(format), format)
    with torch.no_grad():
        model.experts.up.to_local()[1].fill_(2.0 + mesh.get_local_rank())
        for rank in range(mesh.size()):
            whole.experts.up[2 * rank + 1].fill_(2.0 + rank)
        x = batch(format, 0, 0)
        torch.testing.assert_close(model(x), whole(x))
    assert_part(model.experts.up, whole.experts.up, ("rowwise_data", "tensor_amax"), format)


def frozen(mesh, format):
    """For inference."""
    model = build(mesh, format, OverExperts(), True, trainable=False)
    whole = nc.convert(build_plain(format), format, trainable=False)
    x = batch(format, 0, mesh.get_local_rank())
    torch.testing.assert_close(model(x), whole(x))
    assert_part(model.experts.up, whole.experts.up, ("rowwise_data",), format)


class Own(nn.Module):
    """Experts of so many rows."""

    def __init__(self, count, rows):
        super().__init__()
        self.experts = nn.Module()
        self.experts.w = nn.Parameter(torch.randn(count, rows, 64))


def refusals(mesh):
    """Of parts that are converted, and of a part that is registered."""

    def cut(module, placements):
        part = distribute_tensor(module.w, mesh, placements)
        module.register_parameter("w", nn.Parameter(part))

    partial, rows = Own(4, 64), nc.convert(Own(4, 48), "nvfp4")
    cut(partial.experts, [Partial()])
    with pytest.raises(NotImplementedError) as first:
        nc.convert(partial, "nvfp4")
    with pytest.raises(ValueError) as second:
        cut(rows.experts, [Shard(1)])
    return str(first.value), str(second.value)


def test_alone():
    first, second = ranks.run(2, "cpu", alone)
    assert first == second
    partial, rows = first
    assert "experts.w (Module) is a DTensor of 3 dimensions with placements (Partial" in partial
    assert "experts.w: 192x64 matrix in nvfp4 cannot be cut into 2 parts" in rows
    assert "a part would have 24 rows, and each rank needs a multiple of 16" in rows


def shard(model, grid, **options):
    """As torchtitan does: the experts over what is left, all else over all ranks."""
    fully_shard(model.experts, mesh=grid["shard"], **options)
    return fully_shard(model, mesh=grid._flatten() if grid.ndim > 1 else grid, **options)


def written_shards(grid, format):
    """The amax is that of all four parts."""
    whole = nc.convert(build_plain(format), format)
    model = shard(build(grid["over"], format, OverExperts(), True), grid)
    x = batch(format, 0, dist.get_rank())
    model(x)
    model.reshard()
    model.experts.reshard()
    with torch.no_grad():
        model.experts.up.to_local().fill_(2.0 + dist.get_rank())
        for rank in range(dist.get_world_size()):  # experts over two ranks, and then over shards
            whole.experts.up[2 * (rank % 2) + rank // 2].fill_(2.0 + rank)
        torch.testing.assert_close(model(x), whole(x))


def saved(grid, format, folder):
    """A checkpoint over two dimensions goes into one over experts alone, and training goes on."""
    whole, rank = nc.convert(build_plain(format), format), dist.get_rank()
    model = shard(build(grid["over"], format, OverExperts(), True), grid)
    optimizers = train(model, whole, format, rank)
    full = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    for name, w in whole.named_parameters() if rank == 0 else ():
        assert same(full[name], w.value), name
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
        assert_part(p, w, [], name)
    train(other, whole, format, rank, optimizers=[optimizer, optimizers[1]])


@ranks.on(4, "cpu")
def test_within_fully_shard(mesh, tmp_path):
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
        written_shards(grid, format)
        saved(grid, format, f"{tmp_path}/{format}")
