"""Names, orders and dtypes of models of transformers: those that its own save_pretrained writes,
and that from_pretrained finds.
"""

import inspect

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import narrowcast as nc
import published
from weights import quantized

transformers = pytest.importorskip("transformers")

WIDTH = {
    "vocab_size": 64,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MIXTURE = dict.fromkeys(
    ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4
) | {"num_experts_per_tok": 2, "num_expert_per_tok": 2, "moe_intermediate_size": 128}
MIXTURE |= {"first_k_dense_replace": 0, "num_dense_layers": 0, "n_group": 1, "topk_group": 1}
DENSE = "Bert:MaskedLM Cohere Exaone4 Falcon Gemma2 Glm4 Granite Llama Mistral Olmo2 OPT Phi3 Qwen3"
MIXTURES = (
    "Afmoe Cohere2Moe Ernie4_5_Moe FlexOlmo Glm4Moe HunYuanMoEV1 Jamba Lfm2Moe Mellum MiniMax "
    "MiniMaxM2 Mixtral Olmoe Phimoe Qwen2Moe Qwen3Moe Qwen3Next SolarOpen"
)
SPECIAL = {"Lfm2Moe": {"layer_types": ["full_attention", "conv"]}}


def tiny(family):
    """A model with random weights, and the same ones each time."""
    name, _, head = family.partition(":")
    kind = getattr(transformers, f"{name}For{head or 'CausalLM'}")
    config = kind.config_class
    fields = {f for base in config.__mro__ for f in getattr(base, "__annotations__", {})}
    fields |= set(inspect.signature(config.__init__).parameters)
    wanted = WIDTH | MIXTURE | SPECIAL.get(family, {})
    torch.manual_seed(0)
    return kind(config(**{k: v for k, v in wanted.items() if k in fields})).float()


def llava():
    vision = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 1}
    vision |= {"num_attention_heads": 2, "image_size": 28, "patch_size": 14}
    config = transformers.LlavaConfig(
        text_config=transformers.LlamaConfig(**WIDTH),
        vision_config=transformers.CLIPVisionConfig(**vision),
        image_token_index=5,
    )
    torch.manual_seed(0)
    return transformers.LlavaForConditionalGeneration(config)


def decoded(model):
    return {
        name: quantized(one).dequantize() if isinstance(one, nc.MasterWeight) else one
        for name, one in model.named_parameters()
    }


@pytest.mark.parametrize("family", [*DENSE.split(), *MIXTURES.split(), "llava"])
def test_names_of_save_pretrained(family, tmp_path):
    build = llava if family == "llava" else lambda: tiny(family)
    model = build()
    model.save_pretrained(tmp_path / "plain")
    nc.convert(model, "fp8_block128")
    nc.export(model, tmp_path / "out", "deepseek", plain_dtype=torch.float32)
    plain = load_file(tmp_path / "plain" / "model.safetensors")
    there, _ = published.read(tmp_path / "out")
    codes = {name: one for name, one in there.items() if not name.endswith("_scale_inv")}
    assert {k: v.shape for k, v in codes.items()} == {k: v.shape for k, v in plain.items()}
    again, found = type(model).from_pretrained(
        tmp_path / "out", output_loading_info=True, dtype=torch.float32
    )
    assert not any(found.values())
    other = nc.convert(build(), "fp8_block128")
    with torch.no_grad():
        for one in other.parameters():
            one.zero_()
    assert nc.load_published(other, tmp_path / "out") == []
    values = again.state_dict(), decoded(other)
    for name, expected in decoded(model).items():
        assert all(torch.equal(one[name], expected) for one in values), name


def test_routers_are_left_as_they_are():
    for family in ("Phimoe", "HunYuanMoEV1", "Qwen2Moe", "Afmoe", "Llama4"):
        model = nc.convert(tiny(family), "fp8_block128")
        plain = [one.name for one in nc.summary(model).plain if "norm" not in one.name]
        assert all(
            any(part in one for part in ("router", "gate.", "embed", "lm_head", "bias"))
            for one in plain
        )
        assert any("router" in one or "gate." in one for one in plain)


def test_layers_that_a_file_has_joined(tmp_path):
    """HRM's gate and up are one matrix in files, of which each has its rows."""
    model, other = (nc.convert(tiny("HrmText"), "fp8_block128") for _ in range(2))
    nc.export(model, tmp_path / "out", "deepseek")
    there, _ = published.read(tmp_path / "out")
    name = next(one for one in there if one.endswith("gate_up_proj.weight"))
    own, stem = decoded(model), name.removesuffix("gate_up_proj.weight")
    both = torch.cat([own[f"{stem}{part}_proj.weight"] for part in ("gate", "up")]).detach()
    got = published.decoded(there, name.removesuffix("weight"), {})
    assert torch.equal(torch.tensor(got), both)
    with torch.no_grad():
        for one in other.parameters():
            one.zero_()
    assert nc.load_published(other, tmp_path / "out") == []
    loaded = decoded(other)
    assert all(torch.equal(loaded[k], v) for k, v in own.items() if "proj" in k)
    nc.convert(plain := tiny("HrmText"), "fp8_block128", filter="*.gate_proj")
    with pytest.raises(ValueError, match="joins tensors that the model has apart"):
        nc.export(plain, tmp_path / "half", "deepseek")


# ---- experts ----


class Experts(nn.Module):
    """By their shapes [experts, in, out]: 128 wide, of 256."""

    def __init__(self, is_transposed=True):
        super().__init__()
        shapes = [(2, 512, 128), (2, 128, 256)]
        torch.manual_seed(0)
        for name, (count, rows, columns) in zip(("gate_up_proj", "down_proj"), shapes, strict=True):
            value = torch.randn(count, rows, columns)
            value = value.transpose(1, 2).contiguous() if is_transposed else value
            setattr(self, name, nn.Parameter(value))


@pytest.mark.parametrize("name", ["fp8_block128", "mxfp8_2d", "fp8_e4m3"])
def test_experts_in_either_order(name, tmp_path):
    """Files are those of [experts, out, in], to the byte."""
    layout = "compressed-tensors" if name == "fp8_e4m3" else "deepseek"
    models = [nc.convert(nn.ModuleDict({"experts": Experts(one)}), name) for one in (True, False)]
    one, other = (dict(nc.export_tensors(model, layout)) for model in models)
    assert one.keys() == other.keys()
    for key, tensor in one.items():
        assert torch.equal(tensor.view(torch.uint8), other[key].view(torch.uint8)), key
    nc.export(models[1], tmp_path / "out", layout)
    again = nc.convert(nn.ModuleDict({"experts": Experts()}), name)
    with torch.no_grad():
        again["experts"].gate_up_proj.zero_()
    assert nc.load_published(again, tmp_path / "out") == []
    assert torch.equal(
        quantized(again["experts"].gate_up_proj).dequantize(),
        quantized(models[1]["experts"].gate_up_proj).dequantize().transpose(1, 2),
    )


def test_orders_that_cannot_be_published(tmp_path):
    for name in ("mxfp8_e4m3", "nvfp4"):
        model = nc.convert(nn.ModuleDict({"experts": Experts()}), name)
        with pytest.raises(ValueError, match=r"experts\.gate_up_proj: .* rows and columns exchang"):
            nc.export(model, tmp_path / "out", "compressed-tensors")
    experts = Experts()
    experts.down_proj = nn.Parameter(torch.randn(2, 128, 512))
    model = nc.convert(nn.ModuleDict({"experts": experts}), "fp8_block128")
    with pytest.raises(ValueError, match=r"gate_up_proj is \[2, 128, 512\], and down_proj \[2, 12"):
        nc.export(model, tmp_path / "out", "deepseek")
    assert list(tmp_path.iterdir()) == []


def test_experts_of_llama_4():
    """Which says nowhere that they are [experts, in, out]."""
    model = nc.convert(tiny("Llama4"), "fp8_block128")
    tensors = dict(nc.export_tensors(model, "deepseek"))
    stem = "model.layers.0.feed_forward.experts"
    experts = model.model.layers[0].feed_forward.experts
    gate, up = quantized(experts.gate_up_proj).dequantize()[1].T.chunk(2)
    for part, value in (
        ("gate", gate),
        ("up", up),
        ("down", quantized(experts.down_proj).dequantize()[1].T),
    ):
        got = published.decoded(tensors, f"{stem}.1.{part}_proj.", {})
        assert torch.equal(torch.tensor(got), value.detach())


# ---- dtypes ----


def test_what_stays_float32(tmp_path):
    model = nc.convert(tiny("Glm4Moe"), "fp8_block128")
    bias = model.model.layers[1].mlp.gate.e_score_correction_bias
    bias.copy_(torch.tensor([1.001, 1.002, 1.003, 1.0001]))
    model.register_buffer("wide", torch.ones(1, dtype=torch.float64))
    nc.export(model, tmp_path / "out", "deepseek")
    tensors, _ = published.read(tmp_path / "out")
    name = "model.layers.1.mlp.gate"
    assert torch.equal(tensors[f"{name}.e_score_correction_bias"], bias)
    assert tensors[f"{name}.weight"].dtype == torch.float32  # as transformers keeps it
    assert tensors["wide"].dtype == torch.float32
    assert tensors["lm_head.weight"].dtype == torch.float8_e4m3fn
    assert tensors["model.norm.weight"].dtype == torch.bfloat16
    explicit = dict(nc.export_tensors(model, "deepseek", plain_dtype=torch.bfloat16))
    assert explicit[f"{name}.e_score_correction_bias"].dtype == torch.bfloat16
    with pytest.raises(ValueError, match="plain_dtype is"):
        nc.export(model, tmp_path / "no", "deepseek", plain_dtype="bf16")
