"""Experts: parameters of three dimensions, converted, sharded and multiplied in every way."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard

import narrowcast as nc
import ranks
from cut_weights import assert_part, part_of
from models import GATHERS, WHOLE_STATE, assert_quantized, same

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


def train_both(mesh, format, backend, dim=0):
    """The sharded model and the whole one see the same batches, so they stay equal. `dim`: along
    which experts are sharded.
    """

    def place(parameter):
        return Shard(dim) if parameter.dim() == 3 else None

    dtype = torch.bfloat16 if backend else torch.float32  # torch traces no other grouped_mm
    whole, model = (nc.convert(build(*HOW).to(dtype), format) for _ in range(2))
    torch._dynamo.reset()
    for experts in model[:-1]:
        if backend:
            experts.compile(backend=backend, fullgraph=True)
        fully_shard(experts, mesh=mesh, reshard_after_forward=True, shard_placement_fn=place)
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
                assert same(local, part_of(value, mine)), key
        if isinstance(other, nc.QuantizedTensor):
            assert_part(mine, other, ["rowwise_data", "rowwise_scale_inv", "amax", "master"], dim)


@pytest.mark.parametrize("backend", [None, "aot_eager"])
def test_sharded_is_whole(format, backend):
    ranks.run(2, "cpu", train_both, format, backend)


@pytest.mark.parametrize("dim", [1, 2])
def test_sharded_within_experts_is_whole(format, dim):
    ranks.run(2, "cpu", train_both, format, None, dim)


# ---- which parameters are converted ----


def test_the_default_converts_experts(format):
    model = build("selected")
    values = {name: one.detach().clone() for name, one in model.named_parameters()}
    nc.convert(model, format)
    for name, one in model.named_parameters():
        assert isinstance(one, nc.QuantizedTensor) == (one.dim() > 1), name
        if one.dim() > 1:
            assert one.shape == values[name].shape
            assert_quantized(one.detach(), values[name])


class Mixture(nn.Module):
    """Of experts that are not called so."""

    def __init__(self, rows=WIDTH):
        super().__init__()
        self.gate = nn.Linear(WIDTH, WIDTH)
        self.w = nn.Parameter(torch.randn(COUNT, rows, WIDTH))
        self.positions = nn.Conv1d(4, 4, 3)


def test_what_is_left_out_is_said():
    words = r"leaves 80% .* in 1 parameters of three dimensions such as w\."
    with pytest.warns(UserWarning, match=words):
        model = nc.convert(Mixture(), "nvfp4")
    assert not isinstance(model.w, nc.QuantizedTensor)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nc.convert(nn.Sequential(nn.Linear(64, 64), nn.Conv1d(64, 64, 3)), "nvfp4")
        nc.convert(model, "nvfp4", filter=lambda name, module: isinstance(module, Mixture))
    assert isinstance(model.w, nc.QuantizedTensor)


@pytest.mark.parametrize("name", ["nvfp4", "mxfp8_e4m3", "fp8_block128"])
def test_blocks_do_not_straddle_experts(name):
    model, step = Mixture(rows=24), nc.format(name).row_step
    words = f"w: 4 experts of 24x128 cannot be kept in {name}.* multiples of {step} rows.*filter"
    with pytest.raises(ValueError, match=words):
        nc.convert(model, name, filter=lambda name, module: module is model)
    assert not isinstance(model.w, nc.QuantizedTensor)


def test_scaled_products_of_one_expert():
    model = nc.convert(build("selected"), "mxfp8_e4m3", products="scaled")
    x, w = torch.randn(TOKENS, WIDTH), model[0].up
    alone = nn.Linear(WIDTH, HIDDEN, bias=False)
    alone.weight = nn.Parameter(w.master[1])
    alone = nc.convert(alone, "mxfp8_e4m3", products="scaled")
    assert same(F.linear(x, w[1]), alone(x))


@pytest.mark.parametrize("how", ["batched", "grouped"])
def test_products_of_all_experts_decode(how):
    """Whatever was asked for: outputs and gradients are those of decoded products."""
    scaled, plain = (
        nc.convert(build(how), "mxfp8_e4m3", products=products)[0]
        for products in ("scaled", "decoded")
    )
    x = torch.randn(TOKENS, WIDTH)
    for one in (scaled, plain):
        one(x).square().sum().backward()
    assert same(scaled(x), plain(x))
    for mine, other in zip(scaled.parameters(), plain.parameters(), strict=True):
        assert same(mine.grad, other.grad)


# ---- the ways of reading them ----


def test_views(format):
    w = nc.convert(build("selected"), format)[0].up.detach()
    plain, x = w.dequantize(), torch.randn(TOKENS, WIDTH)
    for part, index in (
        (w[1], 1),
        (w[1:3], slice(1, 3)),
        (w.unbind()[2], 2),
        (w[torch.tensor(3)], 3),
    ):
        assert_quantized_part(part, plain[index])
    for got, expected in (
        (x @ w[1].t(), x @ plain[1].t()),
        (x @ w.mT[1], x @ plain[1].t()),
        (w[0] @ x.t(), plain[0] @ x.t()),
        (F.linear(x[0], w[2]), F.linear(x[0], plain[2])),
        (F.linear(x, w.mT[2].t(), x[0, :HIDDEN]), F.linear(x, plain[2], x[0, :HIDDEN])),
        (torch.addmm(x[:, :HIDDEN], x, w[1].T), torch.addmm(x[:, :HIDDEN], x, plain[1].T)),
        (torch.einsum("ti,eoi->teo", x, w), torch.einsum("ti,eoi->teo", x, plain)),
        (torch.matmul(x, w.transpose(1, 2)), torch.matmul(x, plain.transpose(1, 2))),
        (w.mT.float(), plain.mT),
    ):
        torch.testing.assert_close(got, expected)
    for indexed in (lambda: w[torch.tensor([2, 0])], lambda: w.index_select(0, torch.tensor([1]))):
        with pytest.raises(NotImplementedError, match=r"one by one .*F\.grouped_mm"):
            indexed()


def assert_quantized_part(part, value):
    assert isinstance(part, nc.QuantizedTensor)
    assert same(part.dequantize(), value)


# ---- a real client ----


@pytest.mark.parametrize("implementation", ["eager", "grouped_mm"])
def test_mixtral(implementation):
    transformers = pytest.importorskip("transformers", reason="a client's own experts")
    config = transformers.MixtralConfig(
        vocab_size=96,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_local_experts=4,
    )
    models = [transformers.MixtralForCausalLM(config) for _ in range(2)]
    model = nc.convert(models[0], "mxfp8_e4m3")
    quantized = [one.numel() for one in model.parameters() if isinstance(one, nc.QuantizedTensor)]
    assert sum(quantized) > 0.8 * sum(one.numel() for one in model.parameters())
    for mine, other in zip(models[1].parameters(), model.parameters(), strict=True):
        is_quantized = isinstance(other, nc.QuantizedTensor)
        mine.data.copy_(other.dequantize() if is_quantized else other)
    tokens = torch.arange(32).view(2, 16)
    for one in models:
        one.set_experts_implementation(implementation)
        one(input_ids=tokens, labels=tokens).loss.backward()
    for mine, other in zip(model.parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-3, atol=1e-5)
