"""nc.export and nc.export_tensors of a whole model: names, dtypes and bytes of every layout, read
by a reader that knows nothing of narrowcast.
"""

import filecmp
import json
import re
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

import narrowcast as nc
import published
from models import same
from narrowcast.publishing import encoding
from narrowcast.registry import layouts
from narrowcast.registry.layouts import LAYOUTS
from published_models import GLOBAL, Experts, build
from weights import quantized

PAIRS = [(format, layout) for format in nc.formats() for layout in nc.format(format).layouts]
NAMES = {
    "deepseek": {"weight", "weight_scale_inv", "scale"},
    "mxfp8": {"weight", "weight_scale_inv"},
    "compressed-tensors": {"weight", "weight_packed", "weight_scale", "weight_global_scale"},
    "modelopt": {"weight", "weight_scale", "weight_scale_2"},
    "gpt-oss": {"weight_blocks", "weight_scales"},
}


@pytest.mark.parametrize(("name", "layout"), PAIRS)
def test_values_are_those_of_the_forward(name, layout, tmp_path):
    model = build(name)
    nc.export(model, tmp_path / "out", layout)
    tensors, config = published.read(tmp_path / "out")
    for layer in "01":
        expected = quantized(model[int(layer)].weight).dequantize().numpy()
        got = published.decoded(
            tensors, f"{layer}.weight" if layout == "gpt-oss" else layer + ".", config
        )
        if nc.format(name).tensor_scale:  # three factors: readers round their product elsewhere
            np.testing.assert_allclose(got, expected, rtol=2**-22, atol=0)
            assert torch.equal(torch.tensor(got).bfloat16(), torch.tensor(expected).bfloat16())
        else:
            np.testing.assert_array_equal(got, expected)
        own = {one[2:] for one in tensors if one.startswith(layer)} - {"bias"}
        assert own <= NAMES[layout]
    assert tensors["3.weight"].dtype == tensors["0.bias"].dtype == torch.bfloat16
    assert torch.equal(tensors["3.weight"], model[3].weight.bfloat16())


@pytest.mark.parametrize(("name", "layout"), PAIRS)
def test_loaded_and_exported_again(name, layout, device, tmp_path):
    """The files are those of the CPU."""
    model, other = build(name, device=device), build(name, seed=1, device=device)
    nc.export(build(name), tmp_path / "cpu", layout, plain_dtype=None)
    nc.export(model, tmp_path / "one", layout, plain_dtype=None)
    assert nc.load_published(other, tmp_path / "one") == []
    nc.export(other, tmp_path / "two", layout, plain_dtype=None)
    for file in (tmp_path / "cpu").iterdir():
        for folder in ("one", "two"):
            assert filecmp.cmp(file, tmp_path / folder / file.name, shallow=False)
    assert all(
        torch.equal(one.value, quantized(one).dequantize())
        for one in (other[0].weight, other[1].weight)
    )
    if not nc.format(name).tensor_scale:
        x = torch.randn(8, 256, device=device)
        assert torch.equal(model(x), other(x))


@pytest.mark.parametrize("layout", GLOBAL)
def test_global_scales(layout, device):
    """Each operation is rounded once, on every device."""
    format = nc.format("nvfp4")
    torch.manual_seed(0)
    amaxes = (1 + torch.rand(1 << 16)) * torch.logspace(-30, 30, 1 << 16)
    one, range = np.float32(1), np.float32(2688)
    expected = range / amaxes.numpy() if layout != "modelopt" else amaxes.numpy() * (one / range)
    scheme = layouts.scheme_of(format, layout)
    got = encoding.global_scale_of(amaxes.to(device), format, scheme).cpu().numpy()
    np.testing.assert_array_equal(got, expected)


def test_several_files(tmp_path):
    model = build("mxfp8_e4m3")
    nc.export(model, tmp_path / "out", "mxfp8", file_size=5e-5)
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    tensors, _ = published.read(tmp_path / "out")
    assert set(index["weight_map"]) == set(tensors)
    assert len(set(index["weight_map"].values())) > 2
    assert index["metadata"]["total_size"] == sum(one.nbytes for one in tensors.values())
    assert nc.load_published(build("mxfp8_e4m3", seed=1), tmp_path / "out") == []


def test_tensors_are_those_of_the_folder(device, tmp_path):
    model = build("nvfp4", device=device)
    nc.export(model, tmp_path / "out", "modelopt", rename={"^": "model."})
    tensors, _ = published.read(tmp_path / "out")
    streamed = dict(nc.export_tensors(model, "modelopt", rename=lambda name: "model." + name))
    assert set(streamed) == set(tensors)
    for name, one in tensors.items():
        assert streamed[name].device.type == device
        assert same(one, streamed[name])


def test_stale_bytes_are_made_first(tmp_path):
    model = build("mxfp8_2d")
    with torch.no_grad():
        model[0].weight.copy_(2 * quantized(model[0].weight).dequantize())
    one, two = (dict(nc.export_tensors(model, "deepseek")) for _ in range(2))
    assert torch.equal(one["0.scale"].view(torch.uint8), two["0.scale"].view(torch.uint8))
    value = published.decoded(one, "0.", {})
    np.testing.assert_array_equal(value, quantized(model[0].weight).dequantize().numpy())


def test_powers_of_two(tmp_path):
    """fp8_block128 with the scales of DeepSeek-V4."""
    model = build("fp8_block128")
    nc.export(model, tmp_path / "out", "deepseek", scale_fmt="ue8m0")
    tensors, config = published.read(tmp_path / "out")
    assert tensors["0.scale"].dtype == torch.float8_e8m0fnu
    assert config["scale_fmt"] == "ue8m0"
    assert config["weight_block_size"] == [128, 128]
    np.testing.assert_array_equal(
        published.decoded(tensors, "0.", config), quantized(model[0].weight).dequantize().numpy()
    )
    assert nc.load_published(build("fp8_block128", seed=1), tmp_path / "out") == []


@pytest.mark.parametrize(
    ("name", "layout"), [(n, one) for n, one in PAIRS if nc.format(n).scale == "e8m0"]
)
def test_blocks_of_zeros(name, layout, device, tmp_path):
    """They have the byte 1, but blocks of tiny values have the byte 0."""
    model = build(name, device=device)
    value = quantized(model[0].weight).dequantize()
    value[:64] = 0
    value[5, 3] = -0.0
    value[33:64:2] = 2.0**-127
    with torch.no_grad():
        model[0].weight.copy_(value)
    nc.export(model, tmp_path / "out", layout)
    tensors, config = published.read(tmp_path / "out")
    scales = next(v for k, v in tensors.items() if k.startswith("0.") and "scale" in k)
    zeros, tiny = scales.view(torch.uint8)[: len(scales) // 6].chunk(2)
    assert (zeros == 1).all()
    assert (tiny == 0).any()
    got = published.decoded(tensors, "0.weight" if layout == "gpt-oss" else "0.", config)
    np.testing.assert_array_equal(got, quantized(model[0].weight).dequantize().cpu().numpy())
    assert nc.load_published(model, tmp_path / "out") == []


@pytest.mark.parametrize("layout", ["deepseek", "gpt-oss"])
def test_experts(layout, tmp_path):
    """They are layers, but stacked in gpt-oss."""
    model, other = (
        nc.convert(nn.ModuleDict({"experts": Experts()}), "mxfp4", parameters="experts.w1")
        for _ in range(2)
    )
    nc.export(model, tmp_path / "out", layout)
    tensors, config = published.read(tmp_path / "out")
    expected = quantized(model["experts"].w1).dequantize()
    if layout == "gpt-oss":
        assert tensors["experts.w1_blocks"].shape == (3, 64, 4, 16)
        assert config["quant_method"] == "mxfp4"
        values = published.decoded(tensors, "experts.w1", config)
    else:
        assert sorted(tensors)[:2] == ["experts.0.w1.scale", "experts.0.w1.weight"]
        assert json.loads((tmp_path / "out" / "config.json").read_text())["expert_dtype"] == "fp4"
        values = [published.decoded(tensors, f"experts.{one}.w1.", {}) for one in range(3)]
    np.testing.assert_array_equal(np.stack(values), expected.numpy())
    assert nc.load_published(other, tmp_path / "out") == []
    assert torch.equal(quantized(other["experts"].w1).dequantize(), expected)


def test_tensors_are_copies(device):
    """Of one moment, unless they are asked for as they are."""
    model = build("fp8_block128", device=device)
    copies = dict(nc.export_tensors(model, "deepseek", plain_dtype=None))
    before = {name: one.clone() for name, one in copies.items()}
    live = dict(nc.export_tensors(model, "deepseek", plain_dtype=None, copy=False))
    assert live["3.weight"].data_ptr() == model[3].weight.data_ptr()
    optimizer = nc.FusedAdam(model.parameters(), lr=0.5)
    model(torch.randn(4, 256, device=device)).sum().backward()
    optimizer.step()
    assert all(same(one, before[name]) for name, one in copies.items())
    assert not same(copies["0.weight"], dict(nc.export_tensors(model, "deepseek"))["0.weight"])


def test_a_write_between_two_tensors():
    """What is yielded after it is of after it, but the scales of codes that are yielded already."""
    model, expected = build("mxfp8_e4m3"), build("mxfp8_e4m3")
    with torch.no_grad():
        expected[1].weight.copy_(2 * quantized(model[1].weight).dequantize())
    tensors = nc.export_tensors(model, "mxfp8")
    got = dict([next(tensors)])
    with torch.no_grad():
        model[1].weight.copy_(2 * quantized(model[1].weight).dequantize())
        model[0].weight.copy_(64 * quantized(model[0].weight).dequantize())
    got |= dict(tensors)
    assert all(same(one, got[name]) for name, one in nc.export_tensors(expected, "mxfp8"))


def test_a_layer_alone(tmp_path):
    for bias in (False, True):
        layer = nc.convert(nn.Linear(128, 128, bias=bias), "fp8_block128")
        nc.export(layer, tmp_path / str(bias), "deepseek")
        tensors, _ = published.read(tmp_path / str(bias))
        assert set(tensors) - {"bias"} == {"weight", "weight_scale_inv"}
        assert nc.load_published(layer, tmp_path / str(bias)) == []


# ---- what cannot be ----


@pytest.mark.parametrize(("value", "name"), [(np.inf, "nvfp4"), (np.nan, "mxfp8_e4m3")])
def test_a_weight_that_is_not_finite(value, name, device, tmp_path):
    model = build(name, device=device)
    with torch.no_grad():
        bad = quantized(model[1].weight).dequantize()
        bad[3, 5] = value
        model[1].weight.copy_(bad)
    with pytest.raises(ValueError, match=r"1\.weight has an infinity or a NaN"):
        nc.export(model, tmp_path / "out", "compressed-tensors")
    assert list(tmp_path.iterdir()) == []


def test_rows_that_gpt_oss_does_not_hold(tmp_path):
    model = nc.convert(nn.Sequential(nn.Linear(48, 64)), "mxfp4")
    with pytest.raises(ValueError, match=r"0\.weight: .* has rows of 48 elements"):
        nc.export(model, tmp_path / "out", "gpt-oss")
    assert list(tmp_path.iterdir()) == []


def test_a_layout_that_a_format_has_not(tmp_path):
    with pytest.raises(
        ValueError,
        match=r"0\.weight: layout 'modelopt' .* fp8_block128, which has compressed-tensors",
    ):
        nc.export(build("fp8_block128"), tmp_path / "out", "modelopt")
    with pytest.raises(ValueError, match="layouts are deepseek"):
        nc.export(build("fp8_block128"), tmp_path / "out", "gguf")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_model_without_a_quantized_weight(layout, tmp_path):
    with pytest.raises(ValueError, match="the model has no quantized weight"):
        nc.export(nn.Linear(32, 32), tmp_path / "out", layout)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_there(tmp_path):
    model = build("mxfp8_e4m3")
    nc.export(model, tmp_path / "out", "mxfp8")
    before = (tmp_path / "out" / "model.safetensors").read_bytes()
    with pytest.raises(FileExistsError, match="overwrite=True"):
        nc.export(build("mxfp8_e4m3", seed=1), tmp_path / "out", "mxfp8")
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == before
    nc.export(build("mxfp8_e4m3", seed=1), tmp_path / "out", "mxfp8", overwrite=True)
    assert (tmp_path / "out" / "model.safetensors").read_bytes() != before
    assert [one.name for one in tmp_path.iterdir()] == ["out"]


def test_an_export_that_fails_leaves_no_folder(tmp_path):
    model = build("mxfp8_e4m3")
    with pytest.raises(ValueError, match="two tensors would be named"):
        nc.export(model, tmp_path / "out", "mxfp8", rename=lambda name: "x.weight")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("new", [None, 3, b"x.weight"])
def test_a_rename_that_makes_no_name(new, tmp_path):
    nc.export(build("mxfp8_e4m3"), tmp_path / "out", "mxfp8")
    for call, *layout in ((nc.export, "mxfp8"), (nc.load_published,)):
        with pytest.raises(TypeError, match=re.escape(f"rename makes {new!r} of 0.weight")):
            call(build("mxfp8_e4m3"), tmp_path / "out", *layout, rename=lambda name: new)


KILLED = """
import os, signal, sys
import torch
import narrowcast as nc
from narrowcast.publishing import folder

first = folder.save_file
def write(tensors, path, metadata):
    first(tensors, path, metadata)
    os.kill(os.getpid(), signal.SIGKILL)
folder.save_file = write
model = nc.convert(torch.nn.Sequential(torch.nn.Linear(256, 384)), "mxfp8_e4m3")
nc.export(model, sys.argv[1], "mxfp8", overwrite=True)
"""


def test_a_process_that_is_killed(tmp_path):
    """The folder that was there stays as it was."""
    nc.export(build("mxfp8_e4m3"), tmp_path / "out", "mxfp8")
    before = (tmp_path / "out" / "model.safetensors").read_bytes()
    for folder in ("out", "new"):
        done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / folder)], check=False)
        assert done.returncode == -signal.SIGKILL
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == before
    assert not (tmp_path / "new").exists()
    nc.export(build("mxfp8_e4m3"), tmp_path / "new", "mxfp8")
    names = [re.sub("-.*", "", one.name) for one in tmp_path.iterdir()]
    assert sorted(names) == [".new.partial", ".out.partial", "new", "out"]


@pytest.mark.parametrize(
    ("name", "layout", "options", "expected"),
    [
        ("fp8_block128", "deepseek", {}, {"quant_method": "fp8", "weight_block_size": [128, 128]}),
        ("mxfp8_2d", "deepseek", {}, {"weight_block_size": [32, 32], "scale_fmt": "ue8m0"}),
        ("mxfp4", "deepseek", {}, {"expert_dtype": "fp4", "modules_to_not_convert": ["3"]}),
        ("mxfp8_e4m3", "mxfp8", {}, {"quant_method": "mxfp8", "weight_block_size": [1, 32]}),
        ("nvfp4", "modelopt", {}, {"quant_algo": "W4A16_NVFP4", "group_size": 16, "ignore": ["3"]}),
        ("nvfp4", "modelopt", {"matmul": "scaled"}, {"quant_algo": "W4A16_NVFP4"}),
        ("mxfp8_e4m3", "modelopt", {}, {"quant_algo": "MXFP8", "group_size": 32}),
        ("mxfp4", "compressed-tensors", {}, {"format": "mxfp4-pack-quantized", "ignore": ["3"]}),
    ],
)
def test_configurations(name, layout, options, expected, tmp_path):
    nc.export(build(name, **options), tmp_path / "out", layout, config={"model_type": "mine"})
    _, config = published.read(tmp_path / "out")
    assert expected.items() <= config.items()
    assert json.loads((tmp_path / "out" / "config.json").read_text())["model_type"] == "mine"


@pytest.mark.parametrize(
    ("name", "inputs"), [("fp8_e4m3", {"strategy": "tensor", "dynamic": True}), ("nvfp4", None)]
)
def test_inputs_whose_scales_are_not_in_the_file(name, inputs, tmp_path):
    """Engines make one scale of a batch themselves, but not the upper of two."""
    nc.export(build(name, matmul="scaled"), tmp_path / "out", "compressed-tensors")
    _, config = published.read(tmp_path / "out")
    there = config["config_groups"]["group_0"]["input_activations"]
    assert there is inputs or inputs.items() <= there.items()


def test_two_formats_in_one_model(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 384), nn.Linear(384, 128, bias=False))
    nc.convert(nc.convert(model, "nvfp4", filter="0"), "mxfp8_e4m3", filter="1")
    nc.export(model, tmp_path / "mixed", "modelopt")
    _, config = published.read(tmp_path / "mixed")
    assert config["quant_algo"] == "MIXED_PRECISION"
    assert config["quantized_layers"]["1"] == {"quant_algo": "MXFP8", "group_size": 32}
    nc.export(model, tmp_path / "groups", "compressed-tensors")
    _, config = published.read(tmp_path / "groups")
    assert config["format"] == "mixed-precision"
    assert [one["targets"] for one in config["config_groups"].values()] == [["0"], ["1"]]


def test_layouts_are_shown():
    assert nc.format("mxfp8_2d").layouts == ["compressed-tensors", "deepseek", "modelopt", "mxfp8"]
    assert nc.format("mxint8").layouts == []
    assert {one for format in nc.formats() for one in nc.format(format).layouts} == set(LAYOUTS)
