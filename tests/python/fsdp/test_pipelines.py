"""Pipelines of torch.distributed.pipelining: whatever the schedule, weights end as those of the
same stages one after the other in one process.
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)

import narrowcast as nc
import ranks
from models import GATHERS, Block, assert_same, same, unit
from weights import quantized

SCHEDULES = {
    "gpipe": (ScheduleGPipe, 1),
    "1f1b": (Schedule1F1B, 1),
    "interleaved 1f1b": (ScheduleInterleaved1F1B, 2),
    "zero bubble": (ScheduleInterleavedZeroBubble, 2),
    "zero bubble in a V": (ScheduleZBVZeroBubble, 2),
}
MICROBATCHES, STEPS = 4, 3
BY_PASS = next(name for name in GATHERS if nc.format(name).gather == "by pass")
SCALED = next(name for name in nc.formats() if nc.format(name).matmul)


class Stage(PipelineStage):
    def _get_init_p2p_neighbors_ops(self):
        """None: these warm connections up, and gloo knows none of a rank to itself, which a V
        has.
        """
        return []


def places(schedule, rank, count):
    """The stages that one of two ranks has."""
    if schedule == "zero bubble in a V":
        return [rank, 3 - rank]
    return [*range(rank, count, 2)]


def parts(format, device, count, **options):
    """All stages of the model, equal in every process."""
    torch.manual_seed(0)
    width = min(4 * unit(format), 256)
    blocks = [nn.Sequential(Block(width, width)) for _ in range(count)]
    return [nc.convert(block.to(device), format, **options) for block in blocks]


def batch(step, width, device):
    generator = torch.Generator().manual_seed(step)
    return [torch.randn(8, width, generator=generator).to(device) for _ in range(2)]


def optimizer_of(modules):
    return nc.FusedAdam([p for one in modules for p in one.parameters()], lr=1e-2)


def whole(stages):
    """The losses of the microbatches, trained in this process alone, and the optimizer."""
    optimizer, losses = optimizer_of(stages), []
    weight = stages[0][0].up.weight
    for step in range(STEPS):
        x, y = batch(step, weight.shape[1], weight.device)
        for inputs, targets in zip(x.chunk(MICROBATCHES), y.chunk(MICROBATCHES), strict=True):
            for stage in stages:
                inputs = stage(inputs)
            loss = F.mse_loss(inputs, targets)
            loss.backward()
            losses.append(loss.item())
        for one in optimizer.param_groups[0]["params"]:
            one.grad /= MICROBATCHES
        optimizer.step()
        optimizer.zero_grad()
    return losses, optimizer


def piped(schedule, mine, count, group):
    """The same in a pipeline, of which this rank has some stages, by number: the losses are those
    of the rank with the last one.
    """
    kind, several = SCHEDULES[schedule]
    weight = next(iter(mine.values()))[0].up.weight
    stages = [Stage(one, at, count, weight.device, group=group) for at, one in mine.items()]
    runner = kind(stages if several > 1 else stages[0], MICROBATCHES, loss_fn=F.mse_loss)
    optimizer, losses = optimizer_of(mine.values()), []
    for step in range(STEPS):
        x, y = batch(step, weight.shape[1], weight.device)
        inputs = [x] if 0 in mine else []
        last = {"target": y, "losses": (heard := [])} if count - 1 in mine else {}
        runner.step(*inputs, **last)
        losses += [loss.item() for loss in heard] if last else []
        optimizer.step()
        optimizer.zero_grad()
    return losses, optimizer


def compare(mesh, format, schedule, shards, reshard, matmul="dequantized"):
    """Two ranks of a pipeline, each of so many shards."""
    device = mesh.device_type
    grid = init_device_mesh(device, (2, shards), mesh_dim_names=("pipe", "shard"))
    count = 2 * SCHEDULES[schedule][1]
    here = places(schedule, grid.get_local_rank("pipe"), count)
    expected, plain = (parts(format, device, count, matmul=matmul) for _ in range(2))
    mine = {at: plain[at] for at in here}
    if shards > 1:
        for one in mine.values():
            fully_shard(one[0], mesh=grid["shard"], reshard_after_forward=reshard)
            fully_shard(one, mesh=grid["shard"])
    losses, optimizer = piped(schedule, mine, count, grid["pipe"].get_group())
    expected_losses, expected_optimizer = whole(expected)
    assert losses in ([], expected_losses)
    for at, one in mine.items():
        for p, w in zip(one.parameters(), expected[at].parameters(), strict=True):
            assert_equal(p, w, optimizer, expected_optimizer, shards, grid)
    return len(losses)


def assert_equal(p, w, optimizer, expected_optimizer, shards, grid):
    def mine(value):
        return value.chunk(shards)[grid.get_local_rank("shard")]

    local = p.to_local() if shards > 1 else p
    for key in ("exp_avg", "exp_avg_sq"):
        moment = optimizer.state[p][key]
        moment = moment.to_local() if shards > 1 else moment
        assert same(moment, mine(expected_optimizer.state[w][key]))
    if not isinstance(w, nc.MasterWeight):
        assert same(local, mine(w))
        return
    assert same(local.value, mine(w.value))
    names = ["rowwise_data", "rowwise_scale_inv", "tensor_amax"]
    if quantized(local).columnwise_data is not None:
        names += ["columnwise_data", "columnwise_scale_inv"]
    assert_same(local, mine(quantized(w)), names)


def compare_all(mesh, cases):
    """Of some arguments of compare(), how many losses this rank has heard of."""
    return [compare(mesh, *case) for case in cases]


def assert_whole(world, device, cases):
    heard = zip(*ranks.run(world, device, compare_all, cases), strict=True)
    assert all(any(one) and {*one} <= {0, MICROBATCHES * STEPS} for one in heard)


def test_pipelines_are_whole(device):
    assert_whole(2, device, [(BY_PASS, schedule, 1, None) for schedule in SCHEDULES])


def test_pipelines_of_scaled_products(device):
    assert_whole(2, device, [(SCALED, "zero bubble", 1, None, "scaled")])


def test_pipelines_of_shards(device):
    """Schedules keep what a backward has gathered, and the next forward reads it."""
    cases = [("1f1b", True), ("interleaved 1f1b", True), ("zero bubble", False)]
    assert_whole(4, device, [(BY_PASS, schedule, 2, keep) for schedule, keep in cases])


@ranks.on(2)
def test_parts_of_a_backward(mesh, format=BY_PASS):
    """The weight's gradient wants no bytes of the weight, and may come when they are freed."""
    torch.manual_seed(0)
    layer = nc.convert(nn.Linear(128, 256).to(mesh.device_type), format)
    fully_shard(layer, mesh=mesh)
    layer.unshard()
    weight, bias = layer.weight, layer.bias
    x = torch.randn(32, 128).to(mesh.device_type).requires_grad_()
    y = F.linear(x, weight, bias)
    ones = torch.ones_like(y)
    expected = torch.autograd.grad(y, (x, weight, bias), ones, retain_graph=True)
    got = torch.autograd.grad(y, x, ones, retain_graph=True)
    layer.reshard()
    got += torch.autograd.grad(y, (weight, bias), ones)
    assert all(same(one, other) for one, other in zip(got, expected, strict=True))
