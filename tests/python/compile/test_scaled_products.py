"""Scaled products under fully_shard, eager and compiled: sharded is whole, byte for byte, and a
backward multiplies the bytes of its own gather.
"""

import copy

import pytest
import torch
from torch.distributed.fsdp import fully_shard

import narrowcast as nc
import ranks
import scaled
from internals import exchange
from models import (
    Layer,
    assert_equal_state,
    build,
    build_plain,
    one_of_each,
    same,
    shard,
    train,
    unit,
)
from sharded_states import train_and_record


def _key(f):
    return (
        f.matmul is None,
        f.matmul and f.matmul.stochastic_gradient,
        f.gather,
        f.tensor_amax,
    )


TESTED_FORMATS = [name for name in one_of_each(_key) if name in scaled.SCALED]
ROWS, COLUMNS = 256, 64
BACKENDS = ["aot_eager", "inductor"]


def train_both(mesh, format, options):
    """Equal batches on all ranks, so their mean gradient is that of one process."""
    device, outcomes = mesh.device_type, []
    whole = build(format, device, matmul="scaled")
    model = shard(build(format, device, matmul="scaled"), mesh, **options)
    optimizers = [nc.FusedAdam(m.parameters(), lr=1e-2) for m in (model, whole)]
    for one, optimizer in zip((model, whole), optimizers, strict=True):
        torch.manual_seed(3)  # of gradients that are rounded stochastically
        outcomes.append(train(one, optimizer, 4, device))
    assert outcomes[0] == outcomes[1]
    assert len(set(outcomes[0])) == 4
    assert_equal_state(model, optimizers[0], whole, optimizers[1], mesh)


@pytest.mark.parametrize(("world", "reshard"), [(1, True), (2, True), (2, False), (4, True)])
def test_sharded_is_whole(format, device, world, reshard):
    if unit(format) * world <= build_plain(format).width:
        ranks.run(world, device, train_both, format, {"reshard_after_forward": reshard})


@pytest.mark.parametrize("backend", BACKENDS)
@ranks.on(2)
def test_compiled(mesh, format, backend):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    seen = []
    for compiler in (None, backend):
        torch.manual_seed(0)
        model = build(format, mesh.device_type, matmul="scaled")
        for block in model.blocks:
            if compiler:
                block.compile(backend=compiler, fullgraph=True)
        torch.manual_seed(3)
        seen.append(train_and_record(mesh, shard(model, mesh, reshard_after_forward=True)))
    for number, (got, expected) in enumerate(zip(*seen, strict=True)):
        if backend == "aot_eager":
            assert same(got, expected), number
        else:  # rounds otherwise what is no product, and codes change with that
            assert scaled.row_error(got.reshape(1, -1), expected.reshape(1, -1)) < 0.2, number
    counters = torch._dynamo.utils.counters
    assert counters["stats"]["unique_graphs"] == 1, counters
    assert not counters["graph_break"]


def layers(mesh, format, seed, backend=None):
    """A sharded layer, and an equal one that is whole."""
    made = []
    for _ in range(2):
        torch.manual_seed(seed)
        layer = Layer(COLUMNS, ROWS, bias=False)
        made.append(nc.convert(layer, format, matmul="scaled").to(mesh.device_type))
    if backend:
        torch._dynamo.reset()
        made[0].compile(backend=backend, fullgraph=True)
    fully_shard(made[0], mesh=mesh, reshard_after_forward=True)
    return made


@pytest.mark.parametrize("backend", [None, *BACKENDS])
@ranks.on(2)
def test_the_backward_reads_its_own_gather(mesh, format, backend):
    """Shards whose bytes change after the forward: exactly the backward sees it."""
    layer, whole = layers(mesh, format, 0, backend)
    other, expected = layers(mesh, format, 1)
    generator = torch.Generator().manual_seed(9)
    x, gradient = (torch.randn(6, n, generator=generator) for n in (COLUMNS, ROWS))
    x, gradient = x.to(mesh.device_type).requires_grad_(), gradient.to(mesh.device_type)
    with torch.no_grad():
        other(x)  # whose bytes its first gather makes
    for step in range(3):
        x.grad = None
        output = layer(x)
        assert same(output, (whole if step == 0 else expected)(x)), step
        exchange(layer, other, ("rowwise", "columnwise"))
        torch.manual_seed(step)
        output.backward(gradient)
        torch.manual_seed(step)
        assert same(x.grad, torch.autograd.grad(expected(x), x, gradient)[0]), step


@ranks.on(2, "cpu")
def test_converted_last(mesh, format="nvfp4"):
    """Shards of 17 rows, an odd number; the gathered weight has 34, as its output's gradient."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(64, 34, bias=False)
    whole = nc.convert(copy.deepcopy(layer), format, matmul="scaled")
    nc.convert(fully_shard(layer, mesh=mesh), format, matmul="scaled")
    x = torch.randn(6, 64, generator=torch.Generator().manual_seed(1))
    assert same(layer(x), whole(x))
