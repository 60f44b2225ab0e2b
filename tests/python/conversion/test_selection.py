"""Which parameters nc.convert chooses: functions, patterns of names, parameters of
any name.
"""

import re
import warnings

import pytest
import torch
from torch import nn

import narrowcast as nc
from models import assert_quantized

FORMAT = "mxfp8_e4m3"  # the choice knows no format


class Experts(nn.Module):
    """Matrices that no nn.Linear holds, of which one has three dimensions."""

    def __init__(self):
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.randn(4, 64, 32))
        self.down_proj = nn.Parameter(torch.randn(4, 32, 64))
        self.down_bias = nn.Parameter(torch.randn(32))
        self.counts = nn.Parameter(torch.zeros(4, 32, dtype=torch.int64), requires_grad=False)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = nn.Linear(64, 64)
        self.mlp = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 64))
        self.experts = Experts()


def model():
    torch.manual_seed(0)
    return nn.ModuleDict({"embedding": nn.Embedding(64, 64), "layers": nn.ModuleList([Layer()])})


def quantized(**options):
    converted = nc.convert(model(), FORMAT, **options)
    return {
        name.removeprefix("layers.0.")
        for name, one in converted.named_parameters()
        if isinstance(one, nc.MasterWeight)
    }


def test_a_filter_takes_name_and_module():
    assert quantized(filter=lambda a, b: isinstance(b, nn.Linear) and a.endswith("attn")) == {
        "attn.weight"
    }
    with pytest.raises(ValueError, match=r"a function of \(name, module\), chooses no module"):
        quantized(filter=lambda a, b: isinstance(a, nn.Linear))


def test_patterns_choose_among_linear_layers():
    assert quantized(filter="*.mlp.*") == {"mlp.0.weight", "mlp.2.weight"}
    assert quantized(filter=["*attn", "*.mlp.2"]) == {"attn.weight", "mlp.2.weight"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"filter": ["*attn", "*.mlq.*"]}, r"filter: the pattern '\*\.mlq\.\*' matches.*nn.Linear"),
        (
            {"filter": "*.mlp.1"},
            r"no nn\.Linear or experts \(names are such as 'layers",
        ),
        ({"filter": []}, "chooses no module"),
        ({"parameters": "*.down_bias"}, r"parameters: the pattern '\*\.down_bias' matches"),
        ({"filter": None}, "chooses no module"),
    ],
)
def test_what_chooses_nothing_is_an_error(options, words):
    with pytest.raises(ValueError, match=words):
        quantized(**options)


def test_parameters_of_any_name():
    experts = {"experts.gate_up_proj", "experts.down_proj"}
    linear = {"attn.weight", "mlp.0.weight", "mlp.2.weight"}
    assert quantized(parameters="*.experts.*") == linear | experts
    assert quantized(filter=None, parameters=["*_up_proj"]) == {"experts.gate_up_proj"}
    chosen = quantized(
        filter=None, parameters=lambda name, p: p.dim() == 3 and p.is_floating_point()
    )
    assert chosen == experts
    assert quantized(filter="*attn", parameters="embedding.weight") == {
        "attn.weight",
        "embedding.weight",
    }


def test_a_parameter_of_another_name_is_the_quantized_value():
    converted = nc.convert(model(), FORMAT, filter=None, parameters="*.down_proj")
    before = model()["layers"][0].experts.down_proj
    after = converted["layers"][0].experts.down_proj
    assert_quantized(after.detach(), before.detach())
    assert torch.equal(after.value, before)


def test_parameters_that_are_shared():
    """Every place gets the new one, whatever it is called there."""
    one = model()
    one["layers"][0].other = one["layers"][0].experts.down_proj
    nc.convert(one, FORMAT, filter=None, parameters=["*.down_proj", "*.other"])
    assert type(one["layers"][0].other) is nc.MasterWeight
    assert one["layers"][0].other is one["layers"][0].experts.down_proj
    one = model()
    one["layers"][0].other = one["layers"][0].experts.down_proj
    with pytest.raises(ValueError, match="the same parameter as"):
        nc.convert(one, FORMAT, parameters="*.down_proj")


def test_what_is_named_is_not_left_out_in_silence():
    """The default leaves out what is shared, but not what is asked for by name."""
    one = model()
    one["head"] = nn.Linear(64, 64)
    one["head"].weight = one["embedding"].weight
    with pytest.raises(ValueError, match=r"the same parameter as embedding\.weight"):
        nc.convert(one, FORMAT, parameters="head.weight")
    nc.convert(one, FORMAT, parameters="embedding.weight")  # and the head by default
    assert type(one["head"].weight) is nc.MasterWeight
    assert one["head"].weight is one["embedding"].weight


class Conv1D(nn.Module):
    """As transformers has it: a linear layer that is no nn.Linear."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 64))


def test_matrices_that_the_default_leaves_out_are_said():
    def gpt2():
        blocks = nn.ModuleList([nn.ModuleDict({"c_fc": Conv1D()}) for _ in range(3)])
        return nn.ModuleDict({"e": nn.Embedding(64, 64), "h": blocks, "head": nn.Linear(64, 64)})

    words = r"leaves 60% .* in 3 parameters such as h\.0\.c_fc\.weight: "
    with pytest.warns(UserWarning, match=words) as seen:
        one = nc.convert(gpt2(), FORMAT)
    (advised,) = re.findall(r'parameters="(.*)"\)', str(seen[0].message))
    assert not any(isinstance(block["c_fc"].weight, nc.MasterWeight) for block in one["h"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        other = nc.convert(gpt2(), FORMAT, filter=None, parameters=advised)  # of the user's own
        assert all(type(block["c_fc"].weight) is nc.MasterWeight for block in other["h"])
        nc.convert(other, FORMAT)  # what is quantized already is not left out
        nc.convert(nn.Sequential(nn.Embedding(640, 64), nn.Linear(64, 64)), FORMAT)


def test_layers_whose_weight_is_computed():
    """By weight_norm and its like: the default and patterns leave them out, and take the others."""
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(64, 64))
    layers = nn.Sequential(nn.Linear(64, 256), nn.Linear(256, 64), normed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of how much it leaves out
        nc.convert(layers, FORMAT)
    kinds = [isinstance(layer.weight, nc.MasterWeight) for layer in layers]
    assert kinds == [True, True, False]


def test_spectral_norm_of_a_quantized_weight(format):
    """Beside which it keeps vectors."""
    layer = nc.convert(nn.Linear(256, 128, bias=False), format)
    normed = nn.utils.parametrizations.spectral_norm(layer)
    largest = torch.linalg.matrix_norm(normed.weight.detach(), 2)
    assert 0.5 < largest < 1.5
