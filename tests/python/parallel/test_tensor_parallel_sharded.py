"""Tensor parallelism within fully_shard: each rank's part is that of the whole weight's cast."""

import gc
import itertools
import weakref

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ParallelStyle, parallelize_module

import narrowcast as nc
import ranks
from cut_weights import BY_SHARD, assert_part
from internals import is_unaligned
from models import STORAGES, one_of_each, unit
from narrowcast.tensor import dtensors
from parallel_models import (
    PLAN,
    SEQUENCE_PLAN,
    assert_trains_as_whole,
    batch,
    build,
    build_plain,
    message_of,
    width_of,
)

# Of what ranks reduce where they share blocks.
SHARING = one_of_each(lambda f: (f.tensor_amax, f.rowwise.element_bits, f.amax, f.row_step))


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
        written_shards(grid, format)
    hybrid = init_device_mesh("cpu", (2, 1, 2), mesh_dim_names=("replica", "shard", "parallel"))
    model = build(hybrid["parallel"], "nvfp4")
    fully_shard(model, mesh=hybrid["replica", "shard"])
    assert_trains_as_whole(model, "nvfp4")
    mixed(grid, "mxfp8_e4m3")
    pair = dtensors._joint_group((rank, rank + 2), dist.group.WORLD)
    assert dist.get_process_group_ranks(pair) == [rank, rank + 2]
    assert pair is dtensors._joint_group((rank, rank + 2), dist.group.WORLD)

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
    value = weakref.ref(dtensors.local_of(model.up.weight).value)
    assert value() is not None
    fully_shard(model, mesh=grid["shard"])
    model(x)
    gc.collect()
    assert value() is None


class Sharding(ParallelStyle):
    def _apply(self, module, mesh):
        return fully_shard(module, mesh=mesh)


def in_a_style(grid):
    """fully_shard called by parallelize_module; it cuts blocks as ever."""
    model = nc.convert(nn.Sequential(nn.Linear(64, 96)), "mxfp8_e4m3")
    parallelize_module(model, grid["shard"], {"0": Sharding()})
    assert is_unaligned(model[0].weight)


def straddled(grid, format):
    """fully_shard cuts the parts within blocks."""
    size = (3 * unit(format),)
    divided = size[0] // 2 % nc.format(format).shard_row_step != 0
    for rounding in ("nearest", "stochastic"):
        model = build(grid["parallel"], format, converted_first=rounding == "nearest", size=size)
        assert_shares_blocks(grid, model, [divided, divided])
        assert_gathers_as_whole(model, format, rounding, size)
    written_shards(grid, format, size)


def assert_shares_blocks(grid, model, divided):
    fully_shard(model, mesh=grid["shard"])
    weights = model.up.weight, model.down.weight
    assert [is_unaligned(p) for p in weights] == divided


def assert_gathers_as_whole(model, format, rounding, size):
    *_, whole = assert_trains_as_whole(model, format, rounding=rounding, size=size)
    model.unshard()
    for name in ("up", "down"):
        part, weight = getattr(model, name).weight, getattr(whole, name).weight
        assert_part(part, weight, ["rowwise_data", "rowwise_scale_inv", "tensor_amax"], name)


@ranks.on(6, "cpu")
def test_unequal_parts_share_blocks(mesh):
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


def written_shards(grid, format, size=None):
    """The amax is that of all four parts."""
    whole = nc.convert(build_plain(format, size), format)
    model = fully_shard(build(grid["parallel"], format, size=size), mesh=grid["shard"])
    x = batch(format, 0, size=size)
    model(x)
    model.reshard()
    with torch.no_grad():
        model.up.weight.to_local().fill_(2.0 + dist.get_rank())
        whole.up.weight.copy_(model.up.weight.full_tensor())
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
