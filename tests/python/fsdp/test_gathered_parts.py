"""Copies of a part of a gathered weight, made in a forward: the backward uses bytes that have come,
or says so.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard

import narrowcast as nc
import ranks
from models import FEW, GATHERS, same, unit

TESTED_FORMATS = GATHERS

ROWS, COLUMNS = 4, 3  # units
KINDS = ("ValueError", "BackendCompilerFailed", "TorchRuntimeError")  # while tracing: torch's own

# Whole blocks of both usages, or of the one that a forward gathers (with `odd` rows).
PARTS = {
    "columns": lambda w, n, odd: w[:, :n].contiguous(),
    "last columns": lambda w, n, odd: w[:, n:].contiguous(),
    "rows": lambda w, n, odd: w[:n].clone(),
    "last rows": lambda w, n, odd: w[2 * n :].clone(),
    "corner": lambda w, n, odd: w[n : 3 * n, n:].clone(),
    "cpu": lambda w, n, odd: w[:n].cpu(),
    "dtype": lambda w, n, odd: w[n:].to(torch.bfloat16),
    "whole": lambda w, n, odd: w.clone(),
    "view of a copy": lambda w, n, odd: w[n:].clone()[:n],
    "copy of a copy": lambda w, n, odd: w[n:].clone()[:, n:].clone(),
    "view": lambda w, n, odd: w[n : 2 * n],
    "odd rows": lambda w, n, odd: w[:odd].clone(),
    "odd last rows": lambda w, n, odd: w[odd:].clone(),
    "odd view": lambda w, n, odd: w[odd : odd + n],
    "odd view of the end": lambda w, n, odd: w[odd:],
}


# A trace knows no place of a part, and no scales, which torch.cat compares.
COMPILED = [name for name in PARTS if not name.startswith(("odd", "last"))]


class Part(nn.Linear):
    """A product with a part of the weight."""

    def __init__(self, n, name):
        super().__init__(COLUMNS * n, ROWS * n, bias=False)
        self.n, self.name, self.take = n, name, PARTS[name]

    def part_of(self, weight):
        return self.take(weight, self.n, self.n // 2 + 5)

    def product(self, x, part):
        x = x[:, : part.shape[1]].to(part.device, part.dtype)
        return F.linear(x, part)

    def forward(self, x):
        """The input is moved to the CPU before the part is. FSDP2 reduces gradients when that of
        the input has come, and counts on autograd, which begins with what was recorded last, to
        have the weight's by then. But autograd runs operations of the CPU and of a GPU in two
        threads, each in its own order: if the part's move is recorded first, it is undone last,
        beside that reduction, and the weight's gradient may be missing, a plain weight's as well.
        """
        moved = x.cpu() if self.name == "cpu" else x
        return self.product(moved, self.part_of(self.weight)).to(x)


def layer(format, name):
    torch.manual_seed(0)
    return Part(unit(format), name)


def expected(format, name, x, gradient):
    """The output and the gradients of the input and the weight: forward's product with the rowwise
    value, the input's gradient with the columnwise one.
    """
    plain = layer(format, name).to(x.device)
    results = []
    for usage in ("rowwise", "columnwise"):
        value = nc.quantize(plain.weight.detach(), format).dequantize(usage=usage)
        value, x = value.requires_grad_(), x.detach().clone().requires_grad_()
        part = plain.part_of(value).contiguous()
        output = plain.product(x, part).to(x)
        output.backward(gradient[:, : output.shape[1]])
        results.append((output.detach(), x.grad, value.grad))
    (output, _, of_weight), (_, of_input, _) = results
    return output, of_input, of_weight


def forward_and_backward(mesh, format, name, recompute, compiled):
    """ "right", or "refused" if the very cut is, in the forward."""
    device = mesh.device_type
    model = nc.convert(nn.Sequential(layer(format, name)), format, recompute=recompute).to(device)
    if compiled:
        torch._dynamo.reset()
        model[0].compile(backend="aot_eager")
    fully_shard(model[0], mesh=mesh, reshard_after_forward=True)
    fully_shard(model, mesh=mesh)
    generator = torch.Generator().manual_seed(1)
    x, gradient = (
        torch.randn(5, n, generator=generator).to(device) for n in reversed(model[0].weight.shape)
    )
    outputs = expected(format, name, x, gradient)
    x.requires_grad_()
    try:
        output = model(x)
    except ValueError as error:
        assert "cannot be cut" in str(error)
        return "refused"
    output.backward(gradient[:, : output.shape[1]])
    results = output.detach(), x.grad, model[0].weight.grad.full_tensor()
    for what, got, right in zip(("output", "input", "weight"), results, outputs, strict=True):
        assert same(got, right), (what, (got - right).abs().max().item())
    return "right"


def outcome(*arguments):
    try:
        return forward_and_backward(*arguments)
    except Exception as error:
        return type(error).__name__, str(error)


def train(mesh, format, recompute, compiled=False):
    """For each part its outcome, or the error's kind and words."""
    names = COMPILED if compiled else PARTS
    return {name: outcome(mesh, format, name, recompute, compiled) for name in names}


def assert_right_or_named(device, format, recompute, compiled=False):
    """Both usages come, or all that either needs; then blocks of both cannot be cut. What a by-pass
    format's backward lacks without `recompute` is an error on every rank, never a number.
    """
    first, second = ranks.run(2, device, train, format, recompute, compiled)
    may_lack = not recompute and nc.format(format).gather != "rowwise"
    for name in first:
        both = first[name], second[name]  # torch's own words name each rank's device
        if may_lack and isinstance(first[name], tuple):
            assert both[0][0] == both[1][0] in KINDS, (name, both)
            assert all("recompute=True" in words for _, words in both), (name, both)
        else:
            assert both in {("right",) * 2, ("refused",) * 2}, (name, both)
            assert "right" in both or "odd" in name, name


@pytest.mark.parametrize("recompute", [True, False])
def test_gradients(format, recompute, device):
    assert_right_or_named(device, format, recompute)


@pytest.mark.parametrize("gathered", FEW)
def test_gradients_of_compiled_layers(gathered, device):
    assert_right_or_named(device, gathered, False, compiled=True)
