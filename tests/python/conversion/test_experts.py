"""Which parameters of three dimensions nc.convert converts, and what products they have."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import narrowcast as nc
from expert_models import COUNT, HIDDEN, TOKENS, WIDTH, build
from models import GATHERS, assert_quantized, same
from weights import quantized

TESTED_FORMATS = GATHERS


def test_the_default_converts_experts(format):
    model = build("selected")
    values = {name: one.detach().clone() for name, one in model.named_parameters()}
    nc.convert(model, format)
    for name, one in model.named_parameters():
        assert isinstance(one, nc.MasterWeight) == (one.dim() > 1), name
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
    words = r"leaves 80% .* in 1 parameters such as w: "
    with pytest.warns(UserWarning, match=words):
        model = nc.convert(Mixture(), "nvfp4")
    assert not isinstance(model.w, nc.MasterWeight)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nc.convert(nn.Sequential(nn.Linear(64, 64), nn.Conv1d(64, 64, 3)), "nvfp4")
        nc.convert(model, "nvfp4", filter=lambda name, module: isinstance(module, Mixture))
    assert isinstance(model.w, nc.MasterWeight)


@pytest.mark.parametrize("name", ["nvfp4", "mxfp8_e4m3", "fp8_block128"])
def test_blocks_do_not_straddle_experts(name):
    model, step = Mixture(rows=24), nc.format(name).row_step
    words = f"w: 4 experts of 24x128 cannot be kept in {name}.* multiples of {step} rows.*filter"
    with pytest.raises(ValueError, match=words):
        nc.convert(model, name, filter=lambda name, module: module is model)
    assert not isinstance(model.w, nc.MasterWeight)


def test_scaled_products_of_one_expert():
    model = nc.convert(build("selected"), "mxfp8_e4m3", matmul="scaled")
    x, w = torch.randn(TOKENS, WIDTH), model[0].up
    alone = nn.Linear(WIDTH, HIDDEN, bias=False)
    alone.weight = nn.Parameter(w.value[1])
    alone = nc.convert(alone, "mxfp8_e4m3", matmul="scaled")
    assert same(F.linear(x, w[1]), alone(x))


@pytest.mark.parametrize("how", ["batched", "grouped"])
def test_products_of_all_experts_decode(how):
    """Whatever was asked for: outputs and gradients are those of dequantized products."""
    scaled, plain = (
        nc.convert(build(how), "mxfp8_e4m3", matmul=matmul)[0]
        for matmul in ("scaled", "dequantized")
    )
    x = torch.randn(TOKENS, WIDTH)
    for one in (scaled, plain):
        one(x).square().sum().backward()
    assert same(scaled(x), plain(x))
    for mine, other in zip(scaled.parameters(), plain.parameters(), strict=True):
        assert same(mine.grad, other.grad)


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
    converted = [one.numel() for one in model.parameters() if isinstance(one, nc.MasterWeight)]
    assert sum(converted) > 0.8 * sum(one.numel() for one in model.parameters())
    for mine, other in zip(models[1].parameters(), model.parameters(), strict=True):
        is_converted = isinstance(other, nc.MasterWeight)
        mine.data.copy_(quantized(other).dequantize() if is_converted else other)
    tokens = torch.arange(32).view(2, 16)
    for one in models:
        one.set_experts_implementation(implementation)
        one(input_ids=tokens, labels=tokens).loss.backward()
    for mine, other in zip(model.parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-3, atol=1e-5)
