"""Ranks write to their shards of a weight whose scale spans all shards: all get the bytes of the
whole new value.
"""

import pytest
import torch
import torch.nn.functional as F

import narrowcast as nc
import ranks
from models import Model, assert_quantized, batch, loss_of, one_of_each, same
from written_models import assert_whole, expected_forward, forward, model_for, weights, write

TESTED_FORMATS = one_of_each(lambda f: (f.tensor_amax, f.amax, f.gather, f.rowwise.block))
TESTED_FORMATS = [name for name in TESTED_FORMATS if nc.format(name).tensor_amax]
WORLDS = pytest.mark.parametrize("world", [2, 3])


@pytest.mark.parametrize(
    ("world", "names"),
    [
        (2, ["blocks.1.down.weight"]),
        (3, ["head.weight"]),
        (3, ["blocks.0.up.weight", "head.weight"]),
    ],
)
@ranks.on("world")
def test_the_next_forward(mesh, format, names):
    model = model_for(mesh, format)
    forward(model, mesh)
    for rank in range(mesh.size()):
        for name in names:
            write(mesh, weights(model)[name], 3.0 + rank, rank)
        got = forward(model, mesh)
        assert same(got, expected_forward(mesh, model)), rank
        assert_whole(mesh, model)


@WORLDS
@ranks.on("world")
def test_the_first_forward(mesh, format):
    """Before FSDP2 has seen the tree."""
    model = model_for(mesh, format)
    write(mesh, weights(model)["blocks.1.up.weight"], 5.0, mesh.size() - 1)
    got = forward(model, mesh)
    assert same(got, expected_forward(mesh, model))
    assert_whole(mesh, model)


@WORLDS
@ranks.on("world")
def test_unshard(mesh, format):
    """Of one module; all shards of the tree are made good at once."""
    model = model_for(mesh, format)
    forward(model, mesh)
    weight = weights(model)["blocks.1.up.weight"]
    write(mesh, weight, 4.0)
    model.blocks[1].unshard()
    whole = model.blocks[1].up.weight
    value = weight.full_tensor().float()
    assert_quantized(whole.detach(), value)
    model.blocks[1].reshard()
    assert same(forward(model, mesh), expected_forward(mesh, model))


@WORLDS
@pytest.mark.parametrize("with_gradients", [True, False])
@ranks.on("world")
def test_step(mesh, format, with_gradients):
    """Without gradients nothing is updated, and nothing hangs."""
    device = mesh.device_type
    model = model_for(mesh, format)
    optimizer = nc.FusedAdam(model.parameters(), lr=1e-2)
    if with_gradients:
        loss_of(model, 0, device).backward()
    write(mesh, weights(model)["blocks.1.up.weight"], 4.0)
    optimizer.step()
    if not with_gradients:
        forward(model, mesh)
    assert_whole(mesh, model)
    optimizer.zero_grad()
    assert same(forward(model, mesh), loss_of(model, 0, device).detach())


@WORLDS
@ranks.on("world")
def test_a_write_within_a_forward(mesh, format):
    """The next gather brings it, and the backward has the weights of the forward."""
    device = mesh.device_type
    model = model_for(mesh, format)
    before = forward(model, mesh)
    last = weights(model)["blocks.1.down.weight"]
    hook = model.blocks[0].register_forward_hook(lambda *_: write(mesh, last, 4.0))
    x, y = batch(model, 0, device)
    x.requires_grad_()
    loss = F.mse_loss(model(x), y)
    hook.remove()
    assert not same(loss.detach(), before)
    assert same(loss.detach(), expected_forward(mesh, model))
    loss.backward()
    gradient, x.grad = x.grad, None
    F.mse_loss(model(x), y).backward()
    assert same(gradient, x.grad)


@pytest.mark.parametrize("way", ["submodule", "another submodule first"])
@ranks.on(2)
def test_forwards_of_a_part(mesh, format, way):
    """What was written before is used, whichever modules the forward runs: one that does not begin
    with the gather of the tree's first module.
    """
    model = model_for(mesh, format)
    forward(model, mesh)
    weight = weights(model)["blocks.1.up.weight"]
    x, _ = batch(model, 0, mesh.device_type)
    if way == "another submodule first":
        with torch.no_grad():
            model.blocks[0](x)
    write(mesh, weight, 4.0)
    block = Model(model.width).blocks[1]
    block.load_state_dict({n: p.full_tensor() for n, p in model.blocks[1].named_parameters()})
    nc.convert(block, weight.to_local().format).to(mesh.device_type)
    seen = []
    model.blocks[1].register_forward_hook(lambda module, args, output: seen.append((*args, output)))
    with torch.no_grad():
        model.blocks[1](x)
        ((x, got),) = seen
        assert same(got, block(x))
