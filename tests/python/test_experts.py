"""Experts: parameters of three dimensions, converted, sharded and multiplied in every way."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard

import narrowcast as nc
import ranks
from models import GATHERS, WHOLE_STATE, assert_quantized, assert_same, local_rows, same

TESTED_FORMATS = GATHERS
COUNT, WIDTH, HIDDEN, TOKENS = 4, 128, 64, 12
HOW = ["selected", "batched", "grouped"]


class Experts(nn.Module):
    """As transformers and torchtitan have them, [out, in] and [in, out]; `how`: by which
    operations.
    """

    def __init__(self, how):
        super().__init__()
        self.how = how
        self.up = nn.Parameter(torch.randn(COUNT, HIDDEN, WIDTH) / WIDTH**0.5)
        self.down = nn.Parameter(torch.randn(COUNT, HIDDEN, WIDTH) / HIDDEN**0.5)

    def forward(self, x):
        if self.how == "grouped":
            ends = torch.tensor([3, 3, 7, TOKENS], dtype=torch.int32)
            hidden = F.silu(F.grouped_mm(x, self.up.transpose(-2, -1), offs=ends))
            return x + F.grouped_mm(hidden, self.down, offs=ends)
        if self.how == "batched":
            hidden = F.silu(torch.bmm(x.view(COUNT, -1, WIDTH), self.up.mT))
            return x + (hidden @ self.down).flatten(0, 1)
        hidden = [F.silu(F.linear(one, w)) for one, w in zip(x.chunk(COUNT), self.up, strict=True)]
        return x + torch.cat([one @ self.down[expert] for expert, one in enumerate(hidden)])


def build(*how):
    torch.manual_seed(0)
    return nn.Sequential(*map(Experts, how), nn.Linear(WIDTH, WIDTH))


def loss_of(model, step):
    x = torch.randn(TOKENS, WIDTH, generator=torch.Generator().manual_seed(step))
    x = x.to(next(model.parameters()).dtype)
    return F.mse_loss(model(x).float(), x.roll(1).float())


def decoded(model, how):
    """A plain model of the rowwise values, and hooks by which autograd saves columnwise ones."""
    plain, columnwise = build(how), {}
    for mine, other in zip(plain.parameters(), model.parameters(), strict=True):
        if isinstance(other, nc.QuantizedTensor):
            mine.data = other.dequantize().detach()
            other_values = other.dequantize(usage="columnwise").detach()
            columnwise[mine.untyped_storage().data_ptr()] = other_values

    def pack(saved):
        values = columnwise.get(saved.untyped_storage().data_ptr())
        if values is None:
            return saved
        return values.as_strided(saved.shape, saved.stride(), saved.storage_offset())

    return plain, torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved)


@pytest.mark.parametrize("how", HOW)
def test_products_and_gradients(format, how):
    model = nc.convert(build(how), format)
    plain, hooks = decoded(model, how)
    x = torch.randn(TOKENS, WIDTH, requires_grad=True)
    output = model(x)
    with hooks:
        expected = plain(x)
    assert same(output, expected)
    gradient = torch.randn_like(output)
    got = torch.autograd.grad(output, [x, *model.parameters()], gradient)
    for one, other in zip(
        got, torch.autograd.grad(expected, [x, *plain.parameters()], gradient), strict=True
    ):
        assert type(one) is torch.Tensor
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def saved_by(function):
    """What autograd saves of it."""
    found = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: found.append(t) or t, lambda t: t):
        function()
    return found


@pytest.mark.parametrize("how", HOW)
def test_no_decoded_weight_is_saved(format, how):
    model = nc.convert(build(how), format)
    for saved in saved_by(lambda: loss_of(model, 0)):
        assert isinstance(saved, nc.QuantizedTensor) or saved.numel() <= TOKENS * WIDTH


def train_both(mesh, format, backend):
    """The sharded model and the whole one see the same batches, so they stay equal."""
    dtype = torch.bfloat16 if backend else torch.float32  # torch traces no other grouped_mm
    whole, model = (nc.convert(build(*HOW).to(dtype), format) for _ in range(2))
    torch._dynamo.reset()
    for experts in model[:-1]:
        if backend:
            experts.compile(backend=backend, fullgraph=True)
        fully_shard(experts, mesh=mesh, reshard_after_forward=True)
    fully_shard(model, mesh=mesh)
    optimizers = [nc.FusedAdam(one.parameters(), lr=1e-2) for one in (model, whole)]
    for step in range(2):
        losses = [loss_of(one, step) for one in (model, whole)]
        for loss, optimizer in zip(losses, optimizers, strict=True):
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        assert same(*losses), step
    for mine, other in zip(model.parameters(), whole.parameters(), strict=True):
        for key, value in optimizers[1].state[other].items():
            if key not in WHOLE_STATE:
                local = optimizers[0].state[mine][key].to_local()
                assert same(local, local_rows(value, mine, mesh)), key
        if isinstance(other, nc.QuantizedTensor):
            names = ["rowwise_data", "rowwise_scale_inv", "amax", "master"]
            assert_same(mine.to_local(), local_rows(other.detach(), mine, mesh), names)


@pytest.mark.parametrize("backend", [None, "aot_eager"])
def test_sharded_is_whole(format, backend):
    ranks.run(2, "cpu", train_both, format, backend)
