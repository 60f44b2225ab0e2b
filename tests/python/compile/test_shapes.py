"""torch.compile: inputs of any shape, and weights of more dimensions than two."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import narrowcast as nc
from models import GATHERS

TESTED_FORMATS = GATHERS


@pytest.fixture(autouse=True)
def forget():
    torch._dynamo.reset()


def test_batches_of_any_size():
    model = nc.convert(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32)), "nvfp4")
    run = torch.compile(model, backend="aot_eager", dynamic=True, fullgraph=True)
    for size in (2, 3, 16):
        x = torch.randn(size, 64)
        assert torch.equal(run(x), model(x))


@pytest.mark.parametrize("bias", [False, True])
def test_sequences_of_any_length(format, bias):
    """Inputs of three dimensions, of which torch makes two dynamic once they have changed."""
    torch.manual_seed(0)
    layers = [nn.Linear(64, 64, bias=bias) for _ in range(2)]
    model = nc.convert(nn.Sequential(*layers), format)
    run = torch.compile(model, backend="aot_eager", fullgraph=True)
    for batch, length in ((2, 16), (2, 24), (3, 8), (5, 7)):
        grads = []
        x = torch.randn(batch, length, 64)
        for function in (model, run):
            out = function(x.requires_grad_())
            grads.append([out, *torch.autograd.grad(out.sum(), (x, model[0].weight))])
        for one, other in zip(*grads, strict=True):
            torch.testing.assert_close(one, other)


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 64, 64))

    def forward(self, x):
        return torch.bmm(x, self.w) + F.linear(x[0], self.w[1])


@pytest.mark.parametrize("dynamic", [None, True])
def test_experts(format, dynamic):
    """A stack of matrices with a master, not gathered by FSDP2."""
    torch.manual_seed(0)
    model, x = nc.convert(Experts(), format), torch.randn(4, 6, 64)
    run = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    for function in (run, torch.no_grad()(run)):
        torch.testing.assert_close(function(x), model(x))
    got, expected = (torch.autograd.grad(f(x).sum(), model.w)[0] for f in (run, model))
    torch.testing.assert_close(got, expected)
