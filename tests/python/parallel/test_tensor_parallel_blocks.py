"""Models of several blocks whose weights are cut by tensor parallelism: compiled, copied, taken out
of lists. What ranks write is in the next forward.
"""

import copy
import gc
import weakref

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.distributed.tensor.parallel import parallelize_module

import narrowcast as nc
import ranks
from models import same
from narrowcast.tensor import dtensors
from parallel_models import PLAN, batch, build, build_plain


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
    """As torchtitan does, with checkpointing: casts of written parts are outside of graphs, and in
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
    assert_copies_agree(mesh, model, x)


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


def assert_copies_agree(mesh, model, x):
    """A write is in the next forward of all."""
    before = model(x)
    scale = 1.0 + mesh.get_local_rank()
    with torch.no_grad():
        model[1].up.weight.to_local().fill_(scale * before.abs().max().item())
    after = model(x)
    assert not same(before, after)
    parts = [torch.empty_like(after) for _ in range(mesh.size())]
    dist.all_gather(parts, after.detach())
    assert all(same(part, after) for part in parts)


@ranks.on(2, "cpu")
def test_tensor_parallel_blocks(mesh):
    compiled(mesh, "mxfp8_e4m3")
    blocks_compiled(mesh, "nvfp4")
    in_a_list(mesh, "nvfp4")
    copied_on_meta(mesh, "nvfp4")
