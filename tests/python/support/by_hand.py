"""What a model whose weights are their own masters has to equal to the bit: plain float32 weights
that are quantized by hand, in each pass the usage that it reads.
"""

import torch
import torch.nn.functional as F
from torch import nn

import narrowcast as nc
from models import Block

FORMATS = ["mxfp8_e4m3", "nvfp4", "fp8_block128"]


class ByHand(torch.autograd.Function):
    """F.linear with the decoded value of a weight's bytes."""

    @staticmethod
    def forward(ctx, x, weight, bias, format):
        quantized = nc.quantize(weight, format)
        ctx.save_for_backward(x, quantized.dequantize(x.dtype, "columnwise"))
        bias = None if bias is None else bias.to(x.dtype)
        return F.linear(x, quantized.dequantize(x.dtype), bias)

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        rows, inputs = gradient.reshape(-1, gradient.shape[-1]), x.reshape(-1, x.shape[-1])
        bias = rows.sum(0).float() if ctx.needs_input_grad[2] else None
        return (rows @ weight).view(x.shape), (rows.t() @ inputs).float(), bias, None


class LinearByHand(nn.Linear):
    format = None

    def forward(self, x):
        return ByHand.apply(x, self.weight, self.bias, self.format)


def plain(width=256, hidden=512, out=64, seed=0):
    torch.manual_seed(seed)
    blocks = (Block(width, hidden) for _ in range(2))
    return nn.Sequential(*blocks, nn.Linear(width, out))


def by_hand(format, *sizes, dtype=torch.float32, **options):
    """The reference. Of another dtype its weights are still float32, and their gradients not."""
    model = plain(*sizes, **options).to(dtype)
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = LinearByHand
            module.format = format
            if dtype != torch.float32:
                module.weight = nn.Parameter(module.weight.detach().float())
                module.weight.grad_dtype = dtype
    return model


def converted(format, *sizes, device="cpu", dtype=torch.float32, convert=(), model=None, **options):
    """What is tested."""
    model = plain(*sizes, **options) if model is None else model
    return nc.convert(model.to(device, dtype), format, **dict(convert))


def batch(step, rank=0, width=256, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(8, width, generator=generator).to(dtype)


def loss_of(model, step, **options):
    return model(batch(step, **options)).float().square().mean()


def train(model, optimizers, steps=4, first=0, **options):
    """The losses of some steps."""
    losses = []
    for step in range(first, first + steps):

        def closure(step=step):
            for one in optimizers:
                one.zero_grad()
            loss = loss_of(model, step, **options)
            loss.backward()
            return loss

        if isinstance(optimizers[0], torch.optim.LBFGS):
            losses.append(optimizers[0].step(closure).item())
            continue
        losses.append(closure().item())
        for one in optimizers:
            one.step()
    return losses


def values(model):
    """All parameters, as plain tensors of their own."""
    return {name: value_of(one).clone() for name, one in model.named_parameters()}


def value_of(tensor):
    return getattr(tensor, "value", tensor).detach()


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def reads_its_bytes(model, format):
    """Whether a forward is that of the bytes of the values that the parameters have now."""
    reference = by_hand(format)
    reference.load_state_dict(values(model))
    return torch.equal(model(batch(7)), reference(batch(7)))


def weights(model):
    return [module.weight for module in model.modules() if isinstance(module, nn.Linear)]


def are_trained(model):
    return all(isinstance(one, nc.MasterWeight) for one in weights(model))


class Given(torch.autograd.Function):
    """A value, with the gradient of another tensor: as a parameter's bytes give it."""

    @staticmethod
    def forward(ctx, other, value):
        return value.view_as(value)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


def call_by_hand(model, format, groups, *inputs):
    """model(*inputs), whose products read the bytes of parameters: rowwise ones in the forward,
    columnwise ones in the backward. `groups`: of the names of those that share a scale.
    """
    columnwise, read = {}, {}
    for names in groups:
        parameters = [model.get_parameter(name) for name in names]
        whole = nc.quantize(torch.cat([one.detach().flatten(0, -2) for one in parameters]), format)
        values = [whole.dequantize(usage=usage) for usage in ("rowwise", "columnwise")]
        rows = [one.shape[:-1].numel() for one in parameters]
        parts = zip(*(one.split(rows) for one in values), strict=True)
        for name, parameter, part in zip(names, parameters, parts, strict=True):
            forward, backward = (one.contiguous().clone().view(parameter.shape) for one in part)
            columnwise[forward.untyped_storage().data_ptr()] = backward
            read[name] = Given.apply(parameter, forward)

    def pack(saved):
        value = columnwise.get(saved.untyped_storage().data_ptr())
        if value is None:
            return saved
        return value.as_strided(saved.shape, saved.stride(), saved.storage_offset())

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
        return torch.func.functional_call(model, read, inputs)
