"""Hooks of what autograd saves, which offload activations: they see inputs and no weights, whose
bytes FSDP2 gathers anew for the backward. And rules of what is saved, by operators.
"""

import gc
import weakref
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import offload_wrapper
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

import narrowcast as nc
import ranks
from internals import store_of
from models import GATHERS, same, unit

TESTED_FORMATS = GATHERS


def made(format, matmul, device):
    torch.manual_seed(0)
    width = unit(format)
    layers = nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)
    return nc.convert(nn.Sequential(*layers), format, matmul=matmul).to(device)


def to_another_dtype():
    """Of values, as a hook that compresses may do."""
    return torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: tensor.double() if tensor.is_floating_point() else tensor,
        lambda kept: kept.float() if kept.is_floating_point() else kept,
    )


def to_copies():
    return torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: (tensor.device, tensor.to("cpu", copy=True)),
        lambda kept: kept[1].to(kept[0]),
    )


HOOKS = {
    "offloaded": torch.autograd.graph.save_on_cpu,
    "copied": to_copies,
    "another dtype": to_another_dtype,
}


def gradients_of(model, x, hooks=None):
    x = x.clone().requires_grad_()
    if hooks is None:
        y = model(x)
    else:
        with hooks():
            y = model(x)
    y.square().sum().backward()
    found = [x.grad, *(one.grad for one in model.parameters())]
    model.zero_grad()
    return found


def products_of(format):
    return ["dequantized"] + ["scaled"] * (nc.format(format).matmul is not None)


@pytest.mark.parametrize("hooks", HOOKS)
def test_gradients(format, device, hooks):
    for matmul in products_of(format):
        model = made(format, matmul, device)
        x = torch.randn(8, unit(format), device=device)
        found, expected = gradients_of(model, x, HOOKS[hooks]), gradients_of(model, x)
        assert all(map(same, found, expected))


def test_a_wrapped_module(device):
    model = made("mxfp8_e4m3", "dequantized", device)
    x = torch.randn(8, unit("mxfp8_e4m3"), device=device)
    wrapped = offload_wrapper(model)
    assert all(map(same, gradients_of(wrapped, x), gradients_of(model, x)))


@pytest.mark.parametrize("hooks", ["offloaded", "copied"])
@ranks.on(2)
def test_shards(mesh, format, hooks):
    """The backward's bytes, also where passes gather other ones."""
    for matmul in products_of(format):
        model = made(format, matmul, mesh.device_type)
        for layer in (model[0], model[2]):
            fully_shard(layer, mesh=mesh, reshard_after_forward=True)
        fully_shard(model, mesh=mesh)
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(8, unit(format), generator=generator).to(mesh.device_type)
        found, expected = gradients_of(model, x, HOOKS[hooks]), gradients_of(model, x)
        for one, other in zip(found, expected, strict=True):
            assert same(*(getattr(value, "_local_tensor", value) for value in (one, other)))


@pytest.mark.parametrize("matmul", ["dequantized", "scaled"])
@ranks.on(2)
def test_a_first_layer_that_is_not_gathered_again(mesh, matmul, format="mxfp8_e4m3"):
    """A layer whose input needs no gradient needs no bytes in its backward."""
    results = []
    for unshards in (True, False):
        model = made(format, matmul, mesh.device_type)
        fully_shard(model[0], mesh=mesh)
        fully_shard(model, mesh=mesh)
        model[0].set_unshard_in_backward(unshards)
        x = torch.randn(8, unit(format), generator=torch.Generator().manual_seed(1))
        model(x.to(mesh.device_type)).square().sum().backward()
        results.append([one.grad.to_local() for one in model.parameters()])
    assert all(map(same, *results))


def test_a_write_before_the_backward(format):
    """An error as torch's, though no hook of its saves the weight."""
    for matmul in products_of(format):
        model = made(format, matmul, "cpu")
        y = model(torch.randn(8, unit(format), requires_grad=True))
        with torch.no_grad():
            model[2].weight.copy_(2 * model[2].weight.value)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def test_a_weight_dies_with_its_backward(format):
    """Whoever keeps a loss keeps no weight that was made for it; a graph that is kept, does."""
    for matmul in products_of(format):
        weight = made(format, matmul, "cpu")[0].weight.detach().clone()
        known, x = weakref.ref(store_of(weight)), torch.randn(8, unit(format), requires_grad=True)
        loss = F.linear(x, weight).sum()
        del weight
        loss.backward(retain_graph=True)
        assert known() is not None
        loss.backward()
        gc.collect()
        assert known() is None
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()


PRODUCTS = torch.ops.aten.mm.default, torch.ops.aten.addmm.default


def asked_by_a_policy(model, x, backend):
    """The products that a selective checkpoint's policy is asked about, all of which it keeps; the
    input's gradient; and how many elements the forward saves.
    """
    asked, kept = [], []

    def policy(context, operator, *args, **kwargs):
        if operator not in PRODUCTS:
            return CheckpointPolicy.PREFER_RECOMPUTE
        asked.append(operator)
        return CheckpointPolicy.MUST_SAVE

    contexts = partial(create_selective_checkpoint_contexts, policy)

    def run(x):
        return checkpoint(model, x, use_reentrant=False, context_fn=contexts)

    torch._dynamo.reset()
    x = x.clone().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        y = torch.compile(run, backend=backend)(x) if backend else run(x)
    y.square().sum().backward()
    saved = sum(one.numel() for one in kept if one.is_floating_point() and one.shape == x.shape)
    return set(asked), x.grad, saved if backend else None


@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("backend", [None, "aot_eager"])
def test_selective_checkpoints_see_products(format, backend, contiguous):
    """As those of plain layers, and an operator's name does for both."""
    x = torch.randn(2, 4, unit(format))
    x = x if contiguous else x.transpose(0, 1)
    model = made(format, "dequantized", "cpu")
    plain = nn.Sequential(nn.Linear(x.shape[-1], x.shape[-1]), *model[1:2])
    plain.append(nn.Linear(x.shape[-1], x.shape[-1]))
    (seen, gradient, saved), (expected, _, plain_saved) = (
        asked_by_a_policy(one, x, backend) for one in (model, plain)
    )
    assert seen == expected and saved == plain_saved
    assert same(gradient, gradients_of(model, x)[0])
