"""New weights that are computed from the old ones: outside of a forward and a backward arithmetic
reads the master, so what a script writes is, to the bit, what it writes to plain weights. Within
them it reads decoded values, with gradients and without.
"""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

import narrowcast as nc
import ranks
from models import GATHERS, assert_quantized, build, build_plain, same, shard

TESTED_FORMATS = GATHERS
WIDTH = 128


def layers(format, device="cpu", dtype=torch.float32):
    """Equal ones, plain and converted."""
    torch.manual_seed(0)
    plain = nn.Linear(WIDTH, WIDTH, bias=False, device=device, dtype=dtype)
    return plain, nc.convert(copy.deepcopy(plain), format)


def plain_average(p):
    average = torch.zeros(p.shape, dtype=p.dtype, device=p.device)
    average.lerp_(p, 0.9)
    return average.mul_(0.9).add_(p, alpha=0.1)


def copied_out(p):
    plain = torch.empty(p.shape, dtype=p.dtype, device=p.device)
    plain.copy_(p)
    return plain * 0.9


def of_singular_values(p):
    u, s, v = torch.linalg.svd(p)
    return u @ torch.diag(s.clamp(max=0.5)) @ v


def in_another_format(p):
    """Through the weight of another layer."""
    name = getattr(p, "format", None) and next(n for n in nc.formats() if n != p.format.name)
    other = nn.Linear(WIDTH, WIDTH, bias=False, device=p.device, dtype=p.dtype)
    other = nc.convert(other, name).weight if name else other.weight
    return other.data.copy_(p) * 0.9


COMPUTED = {
    "itself": lambda p: p * 1,
    "normalized": lambda p: F.normalize(p, dim=1),
    "clamped": lambda p: p.clamp(-0.05, 0.05),
    "decayed": lambda p: p - 0.01 * p,
    "by alpha": lambda p: p.add(torch.ones_like(p), alpha=-1e-4),
    "by its norm": lambda p: p / p.norm(),
    "standardized": lambda p: (p - p.mean(1, keepdim=True)) / p.std(1, keepdim=True),
    "renormalized": lambda p: torch.renorm(p, 2, 0, 0.1),
    "pruned": lambda p: torch.where(p.abs() > 0.02, p, 0.0),
    "masked": lambda p: p.masked_fill(p > 0.02, 0.01),
    "of lists": lambda p: torch._foreach_mul([p], torch._foreach_norm([p])[0].item())[0],
    "clone": lambda p: (p.clone() * 3 + p) / 4,
    "plain average": plain_average,
    "copied out": copied_out,
    "in another format": in_another_format,
    "transposed": lambda p: (p.t() / p.t().norm(dim=0)).t(),
    "flat": lambda p: (p.view(-1) * 0.9).view_as(p),
    "of singular values": of_singular_values,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", COMPUTED)
def test_scripts(format, name, dtype, device):
    """The master is what a plain weight of the dtype is: without gradients, in inference mode, and
    by `.data` where gradients are on.
    """
    if dtype == torch.bfloat16 and name == "of singular values":
        pytest.skip("torch has none of bfloat16")
    plain, layer = layers(format, device, dtype)
    values = []
    for p in (plain.weight, layer.weight):
        with torch.no_grad():
            p.copy_(COMPUTED[name](p))
        p.data.copy_(COMPUTED[name](p.data))
        with torch.inference_mode():
            values.append(COMPUTED[name](p))
    assert same(*values)
    assert same(layer.weight.master, plain.weight.detach().float())
    assert_quantized(layer.weight.detach(), plain.weight.detach())


def test_of_another_dtype(format, device):
    """A float32 value of a bfloat16 weight is the master, to its last bit."""
    plain, layer = layers(format, device)
    weight = layer.to(torch.bfloat16).weight.data
    for value in (weight.float(), weight.to(torch.float32) * 1, weight.double().float()):
        assert same(value, plain.weight.detach())
    assert same(weight.bfloat16() * 1, plain.weight.detach().bfloat16())
    weight.float().zero_()
    assert same(layer.weight.master, plain.weight.detach())


def scripts_of_shards(mesh, format):
    """On every parameter, of shards and of the whole."""
    whole, model = build_plain(format), shard(build(format), mesh)
    converted = build(format)
    names = "itself", "normalized", "clamped", "decayed", "pruned", "masked"
    for one in (whole, model, converted):
        for p in one.parameters():
            for name in names if p.dim() > 1 else ():
                p.data.copy_(COMPUTED[name](p.data))
                with torch.no_grad():
                    p.copy_(COMPUTED[name](p))
    for p, plain in zip(model.parameters(), whole.parameters(), strict=True):
        assert same(p.full_tensor(), plain)
    assert same(*(one(torch.ones(2, whole.width)) for one in (model, converted)))


def test_scripts_of_shards(format):
    ranks.run(2, "cpu", scripts_of_shards, format)


def step_in_backward(p):
    """A step of an optimizer that takes each parameter when its gradient is there."""
    p.copy_(p - 1e-4 * p.grad)


def stepped_in_backward(mesh, format, is_sharded):
    plain, layer = layers(format)
    if is_sharded:
        fully_shard(layer, mesh=mesh)
    for one in (plain, layer):
        one.weight.register_post_accumulate_grad_hook(step_in_backward)
        for _ in range(2):
            one(torch.ones(2, WIDTH)).sum().backward()
    weight = layer.weight.full_tensor() if is_sharded else layer.weight.master
    assert same(weight, plain.weight.detach())


@pytest.mark.parametrize("is_sharded", [False, True])
def test_steps_in_backward(format, is_sharded):
    ranks.run(2, "cpu", stepped_in_backward, format, is_sharded)


# ---- forwards and backwards ----


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * (weight * 2)

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient * (weight * 2), gradient * x * 2


class Layer(nn.Linear):
    """A layer that computes with its weight."""

    def __init__(self, compute):
        super().__init__(WIDTH, WIDTH, bias=False)
        self.compute = compute

    def forward(self, x):
        return self.compute(x, self.weight)


FORWARDS = {
    "scaled": lambda x, w: x * (w * 0.5),
    "detached": lambda x, w: x * w / w.detach().abs().mean(),
    "standardized": lambda x, w: x @ ((w - w.mean(1, keepdim=True)) / w.std(1, keepdim=True)).t(),
    "float": lambda x, w: x @ w.float().t(),
    "embedding": lambda x, w: x * F.embedding(torch.arange(WIDTH), w),
    "copied": lambda x, w: x * torch.empty(w.shape).copy_(w),
    "dropout": lambda x, w: x * F.dropout(w, 0.5, training=False),
    "function": Doubled.apply,
}


OLD = pytest.mark.old_way("arithmetic of a forward reads decoded values of a whole weight")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "embedding" else OLD) for name in FORWARDS],
)
def test_forwards(format, name):
    """A module's forward reads decoded values: an evaluation is what training computes, and a
    gradient is that of these values.
    """
    layer = nc.convert(Layer(FORWARDS[name]), format)
    value = layer.weight.dequantize().detach()
    plain, x = Layer(FORWARDS[name]), torch.randn(WIDTH, WIDTH)
    plain.weight = nn.Parameter(value)
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    for one, input in zip((plain, layer), inputs, strict=True):
        one(input).square().sum().backward()
    assert same(inputs[0].grad, inputs[1].grad)
    assert same(plain.weight.grad, layer.weight.grad)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert same(layer(x), plain(x))
    layer.requires_grad_(False)
    assert same(layer(x), plain(x).detach())
    reentrant = checkpoint(layer.compute, inputs[1], layer.weight, use_reentrant=True)
    assert same(reentrant.detach(), plain(x).detach())


@pytest.mark.old_way("arithmetic reads masters outside of forwards, and decoded values within")
def test_gradients_outside_of_modules(format):
    """What records gradients reads decoded values, of all weights that take part."""
    _, layer = layers(format)
    weight, value = layer.weight, layer.weight.dequantize().detach()
    before = weight.detach().clone()
    assert not (weight - before).any()
    scale = torch.tensor(2.0, requires_grad=True)
    (before * scale).sum().backward()
    assert same(scale.grad, value.sum())
    (weight**2).sum().backward()
    assert same(weight.grad, 2 * value)
    outside = Doubled.apply(torch.ones(()), before)
    assert same(outside, 2 * value)


@pytest.mark.old_way("arithmetic reads masters outside of forwards, and decoded values within")
def test_products_and_bytes(format):
    """Products outside of a forward, dequantize(), torch.equal and graphs read the bytes."""
    _, layer = layers(format)
    weight, x = layer.weight.detach(), torch.randn(3, WIDTH)
    value = weight.dequantize()
    for product in (F.linear, lambda x, w: x @ w.t(), lambda x, w: torch.einsum("ti,oi->to", x, w)):
        assert same(product(x, weight), product(x, value))
    assert torch.equal(weight, value)
    assert not torch.equal(weight * 1, value)
    torch._dynamo.reset()
    assert same(torch.compile(lambda w: w * 2, backend="aot_eager")(weight), value * 2)


def gathered(mesh, format):
    """A gathered weight is its bytes; back in its shards it is its master."""
    plain, layer = layers(format)
    fully_shard(layer, mesh=mesh)
    layer.unshard()
    with torch.no_grad():
        assert same(layer.weight * 1, layer.weight.dequantize().detach())
        layer.reshard()
        assert same((layer.weight * 1).full_tensor(), plain.weight.detach())


def test_gathered(format):
    ranks.run(2, "cpu", gathered, format)
