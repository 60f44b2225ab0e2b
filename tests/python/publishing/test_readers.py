"""Published files in the libraries that people read them with, on the CPU."""

import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from torch.distributed.fsdp import fully_shard

import narrowcast as nc
import published
import ranks
from weights import quantized

transformers = pytest.importorskip("transformers")
compressed = pytest.importorskip("compressed_tensors")

COMPRESSED = [name for name in nc.formats() if "compressed-tensors" in nc.format(name).layouts]


@pytest.mark.parametrize("name", COMPRESSED)
def test_compressed_tensors(name, tmp_path):
    """Its decompressors give the values of the forward."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationConfig

    torch.manual_seed(0)
    model = nc.convert(torch.nn.Sequential(torch.nn.Linear(256, 384, bias=False)), name)
    nc.export(model, tmp_path / "out", "compressed-tensors")
    tensors, config = published.read(tmp_path / "out")
    (scheme,) = QuantizationConfig.model_validate(config).config_groups.values()
    reader = BaseCompressor.get_value_from_registry(scheme.format)
    own = {one.removeprefix("0."): tensor for one, tensor in tensors.items()}
    assert set(own) == set(reader.compression_param_names(scheme))
    got = reader.decompress(own, scheme)["weight"]
    expected = quantized(model[0].weight).dequantize(got.dtype)
    assert torch.equal(got, expected)


@pytest.mark.parametrize(
    ("preset", "written", "name"),
    [
        ("NVFP4A16", "nvfp4-pack-quantized", "nvfp4_1d"),
        ("MXFP4A16", "mxfp4-pack-quantized", "mxfp4"),
        ("MXFP8A16", "mxfp8-quantized", "mxfp8_e4m3"),
        ("FP8_BLOCK", "float-quantized", "fp8_block128"),
    ],
)
def test_files_of_compressed_tensors(preset, written, name, tmp_path):
    """Loaded, they have the values that it decodes."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import preset_name_to_scheme
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    scheme = preset_name_to_scheme(preset, ["Linear"])
    writer = BaseCompressor.get_value_from_registry(written)
    torch.manual_seed(0)
    value = torch.randn(256, 256).bfloat16()
    rows, columns = (128, 128) if preset == "FP8_BLOCK" else (1, scheme.weights.group_size)
    blocks = value.unflatten(0, (-1, rows)).unflatten(2, (-1, columns))
    least, most, above = blocks.amin((1, 3)), blocks.amax((1, 3)), {}
    if preset == "NVFP4A16":
        above = {"global_scale": generate_gparam(value.min(), value.max())}
    scale, _ = calculate_qparams(least, most, scheme.weights, **above)
    state = {"weight": value, "weight_scale": scale}
    state |= {f"weight_{one}": tensor for one, tensor in above.items()}
    tensors = writer.compress(state, scheme)
    file = {f"0.{one}": tensor.contiguous() for one, tensor in tensors.items()}
    safetensors.torch.save_file(file, tmp_path / "model.safetensors")
    model = nc.convert(torch.nn.Sequential(torch.nn.Linear(256, 256, bias=False)), name)
    assert nc.load_published(model, tmp_path, layout="compressed-tensors") == []
    expected = writer.decompress(tensors, scheme)["weight"]
    assert torch.equal(quantized(model[0].weight).dequantize(expected.dtype), expected)


SIZES = {
    "vocab_size": 64,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": False,
    "dtype": "float32",
}


def llama():
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))


def mixture(**options):
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128}
    torch.manual_seed(0)
    return transformers.Qwen3MoeForCausalLM(
        transformers.Qwen3MoeConfig(**SIZES | options, **experts, head_dim=64)
    )


def convert(model, name):
    return nc.convert(
        model,
        name,
        filter=lambda path, module: (
            "layers" in path
            and "norm" not in path
            and "rotary" not in path
            and nc.conversion.selection.default_filter(path, module)
            and not path.endswith("mlp.gate")
        ),
    )


def train_and_export(mesh, build, name, layout, path):
    model = convert(build(), name)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = nc.FusedAdam(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(mesh.get_rank())
    for _ in range(3):
        tokens = torch.randint(64, (2, 16), generator=generator)
        logits = model(tokens).logits
        F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
    nc.export(model, path, layout, plain_dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.arange(16)[None]).logits
    return logits if mesh.get_rank() == 0 else None


def read(layout, path):
    """The model as transformers reads it, dequantized."""
    config = {
        "deepseek": lambda: transformers.FineGrainedFP8Config(dequantize=True),
        "compressed-tensors": lambda: transformers.CompressedTensorsConfig(run_compressed=False),
    }[layout]()
    return transformers.AutoModelForCausalLM.from_pretrained(
        path, quantization_config=config, dtype=torch.float32
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "name", "layout"),
    [
        (llama, "fp8_block128", "deepseek"),
        (llama, "mxfp8_e4m3", "compressed-tensors"),
        (llama, "mxfp4", "compressed-tensors"),
        (llama, "mxfp6_e2m3", "compressed-tensors"),
        (mixture, "fp8_block128", "deepseek"),
    ],
)
def test_transformers(build, name, layout, tmp_path):
    """A model that two ranks have trained, loaded and dequantized by transformers, has narrowcast's
    logits, to the bit.
    """
    path = str(tmp_path / "out")
    expected = ranks.run(2, "cpu", train_and_export, build, name, layout, path)[0]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as ranks have
    try:
        with torch.no_grad():
            logits = read(layout, path)(torch.arange(16)[None]).logits
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(logits, expected), (logits - expected).abs().max()


@pytest.mark.parametrize("choose", [convert, nc.convert])
def test_a_model_from_its_configuration(choose, tmp_path):
    """Also if the file has the head quantized, which the model has plain."""
    model = choose(llama(), "fp8_block128")
    nc.export(model, tmp_path / "out", "deepseek", plain_dtype=None)
    config = transformers.AutoConfig.from_pretrained(tmp_path / "out")
    other = transformers.AutoModelForCausalLM.from_config(config)
    nc.convert(other, "fp8_block128", filter="model.layers.*")
    assert nc.load_published(other, tmp_path / "out") == []
    tokens = torch.arange(16)[None]
    with torch.no_grad():
        assert torch.equal(model(tokens).logits, other(tokens).logits)


def gpt_oss():
    """With experts of normal numbers, and their [experts, in, out] as transformers has them."""
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 64}
    torch.manual_seed(0)
    model = transformers.GptOssForCausalLM(transformers.GptOssConfig(**SIZES | experts))
    for layer in model.model.layers:
        for name in ("gate_up_proj", "down_proj"):
            getattr(layer.mlp.experts, name).data.normal_()
    return model


def test_gpt_oss(tmp_path):
    names = ["*.experts.gate_up_proj", "*.experts.down_proj"]
    model = nc.convert(gpt_oss(), "mxfp4", filter=[], parameters=names)
    with pytest.raises(ValueError, match=r"gate_up_proj is \[experts, in, out\]"):
        nc.export(model, tmp_path / "out", "gpt-oss")
    model = gpt_oss()
    for layer in model.model.layers:
        layer.mlp.experts.is_transposed = False
        for name in ("gate_up_proj", "down_proj"):
            value = getattr(layer.mlp.experts, name).data.transpose(1, 2).contiguous()
            setattr(layer.mlp.experts, name, torch.nn.Parameter(value))
    nc.convert(model, "mxfp4", filter=[], parameters=names)
    nc.export(model, tmp_path / "out", "gpt-oss", plain_dtype=torch.float32)
    there = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", quantization_config=transformers.Mxfp4Config(dequantize=True)
    )
    for mine, its in zip(model.model.layers, there.model.layers, strict=True):
        for name in ("gate_up_proj", "down_proj"):
            value = quantized(getattr(mine.mlp.experts, name)).dequantize().transpose(1, 2)
            assert torch.equal(getattr(its.mlp.experts, name).float(), value)


def test_what_the_configuration_says(tmp_path):
    """A head that shares the embedding's weight, and routers, are no quantized layers."""
    model = convert(mixture(tie_word_embeddings=True), "fp8_block128")
    nc.export(model, tmp_path / "out", "deepseek")
    config = transformers.AutoConfig.from_pretrained(tmp_path / "out")
    assert config.architectures == ["Qwen3MoeForCausalLM"]
    assert config.dtype == torch.bfloat16
    plain = config.quantization_config["modules_to_not_convert"]
    assert plain == ["model.layers.0.mlp.gate", "model.layers.1.mlp.gate", "lm_head"]


@pytest.mark.slow
def test_transformers_and_two_levels_of_scales(tmp_path):
    """compressed-tensors decodes nvfp4 in bfloat16: equal weights, rounded to that."""
    model = convert(llama(), "nvfp4")
    nc.export(model, tmp_path / "out", "compressed-tensors", plain_dtype=torch.float32)
    there = read("compressed-tensors", tmp_path / "out").state_dict()
    for name, own in model.named_parameters():
        if isinstance(own, nc.MasterWeight):
            own = quantized(own).dequantize(torch.bfloat16).float()
        assert torch.equal(there[name], own), name
