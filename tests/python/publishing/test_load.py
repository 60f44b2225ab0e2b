"""nc.load_published of files that others have made, that are damaged, or that a format does not
hold: an error leaves the model as it is.
"""

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.distributed.fsdp import fully_shard

import narrowcast as nc
import ranks
from models import same
from published_models import GLOBAL, Experts, build
from weights import quantized


def states(model):
    return [one.clone() for one in model.state_dict().values()]


def damaged(folder, change):
    """The folder with one file changed by change(tensors)."""
    from safetensors.torch import load_file

    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("1.weight"), r"1\.weight is missing"),
        (
            lambda t: t.update({"1.weight": t["1.weight"][:64].clone()}),
            r"1\.weight is \[64, 384\], and \[128, 384\] was expected",
        ),
        (
            lambda t: t.update({"0.weight": t["0.weight"].float()}),
            r"0\.weight is F32, and F8_E4M3 was expected",
        ),
        (
            lambda t: t.update({"0.weight_scale_inv": torch.zeros(3, 2)}),
            r"0\.weight_scale_inv is \[3, 2\], and \[384, 8\] was expected",
        ),
        (lambda t: t.pop("3.bias"), r"3\.bias is missing"),
    ],
)
def test_files_that_do_not_fit(change, message, tmp_path):
    nc.export(build("mxfp8_e4m3"), tmp_path / "out", "mxfp8")
    damaged(tmp_path / "out", change)
    model = build("mxfp8_e4m3", seed=1)
    before = states(model)
    with pytest.raises(ValueError, match=message):
        nc.load_published(model, tmp_path / "out")
    assert all(map(torch.equal, before, states(model)))


def test_files_that_are_cut_short(tmp_path):
    nc.export(build("mxfp8_e4m3"), tmp_path / "out", "mxfp8")
    file = tmp_path / "out" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ValueError, match="cut short"):
        nc.load_published(build("mxfp8_e4m3"), tmp_path / "out")
    with pytest.raises(FileNotFoundError, match="no safetensors file"):
        nc.load_published(build("mxfp8_e4m3"), tmp_path)


@pytest.mark.parametrize(("name", "suffix"), [("nvfp4", "_2"), ("fp8_e4m3", "")])
def test_experts_with_scales_of_their_own(name, suffix, tmp_path):
    model = nc.convert(nn.ModuleDict({"experts": Experts()}), name, parameters="experts.w1")
    nc.export(model, tmp_path / "out", "modelopt")
    assert nc.load_published(model, tmp_path / "out") == []
    one = f"experts.1.w1.weight_scale{suffix}"
    damaged(tmp_path / "out", lambda tensors: tensors.update({one: 2 * tensors[one]}))
    with pytest.raises(ValueError, match="the 3 layers that it holds have 2 scales"):
        nc.load_published(model, tmp_path / "out")


@pytest.mark.parametrize("layout", GLOBAL)
def test_global_scales_of_other_files(layout, tmp_path):
    """Of eight neighbours some are the scale of an amax, and are held exactly; others are not."""
    other, one = build("nvfp4", seed=1), "0." + GLOBAL[layout]
    nc.export(build("nvfp4"), tmp_path / "out", layout)
    errors, scale = 0, torch.tensor(1.9)
    for _ in range(8):
        scale = scale.nextafter(torch.tensor(2.0))
        change = {one: scale.reshape(() if layout == "modelopt" else 1)}
        damaged(tmp_path / "out", lambda tensors, change=change: tensors.update(change))
        before = states(other)
        try:
            nc.load_published(other, tmp_path / "out")
        except ValueError as error:
            assert re.search(rf"{one} is 1\.9\d*, .* the nearest has 1\.[89]\d+", str(error))
            errors += 1
            assert all(map(torch.equal, before, states(other)))
            nc.load_published(other, tmp_path / "out", nearest_scale=True)
            held = dict(nc.export_tensors(other, layout))[one].reshape(())
            assert held != scale == held.nextafter(scale)
        else:
            assert dict(nc.export_tensors(other, layout))[one].reshape(()) == scale
    assert 0 < errors < 8
    damaged(tmp_path / "out", lambda tensors: tensors.update({one: 0 * tensors[one] - 1}))
    with pytest.raises(ValueError, match=f"{one} is -1"):
        nc.load_published(other, tmp_path / "out", nearest_scale=True)


def test_a_format_that_does_not_hold_the_bytes(tmp_path):
    """Blocks of 32 x 32 hold no scales of their own for each row; the other way they do."""
    nc.export(build("mxfp8_e4m3"), tmp_path / "rows", "mxfp8")
    model = build("mxfp8_2d", seed=1)
    before = states(model)
    with pytest.raises(ValueError, match=r"0\.weight: scales differ within \(32, 32\)"):
        nc.load_published(model, tmp_path / "rows")
    assert all(map(torch.equal, before, states(model)))
    nc.export(build("mxfp8_2d"), tmp_path / "squares", "mxfp8")
    other = build("mxfp8_e4m3", seed=1)
    assert nc.load_published(other, tmp_path / "squares") == []
    loaded, expected = (quantized(one[0].weight) for one in (other, build("mxfp8_2d")))
    assert torch.equal(loaded.dequantize(), expected.dequantize())


def test_the_formats_that_would_hold_them(tmp_path):
    nc.export(build("fp8_block128"), tmp_path / "out", "deepseek")
    with pytest.raises(ValueError, match="formats that hold what is there: fp8_block128"):
        nc.load_published(build("mxfp8_2d"), tmp_path / "out")


def test_what_would_hold_blocks_where_a_format_has_one_scale(tmp_path):
    nc.export(build("mxfp8_e4m3"), tmp_path / "out", "compressed-tensors")
    with pytest.raises(ValueError, match="formats that hold what is there: mxfp8_2d, mxfp8_e4m3"):
        nc.load_published(build("fp8_e4m3"), tmp_path / "out")


# ---- what one side has quantized and the other not ----

PAIRS = [(format, layout) for format in nc.formats() for layout in nc.format(format).layouts]


@pytest.mark.parametrize(("name", "layout"), PAIRS)
def test_codes_for_a_plain_weight_are_decoded(name, layout, tmp_path):
    """In the file 0 and 1 are quantized, in the model 1 alone."""
    model = build(name)
    nc.export(model, tmp_path / "out", layout, plain_dtype=None)
    torch.manual_seed(1)
    plain = [nn.Linear(256, 384), nn.Linear(384, 128, bias=False), nn.LayerNorm(128)]
    other = nc.convert(nn.Sequential(*plain, nn.Linear(128, 5)), name, filter="1")
    assert nc.load_published(other, tmp_path / "out") == []
    expected = quantized(model[0].weight).dequantize()
    assert torch.equal(other[0].weight, expected)
    kept = dict(nc.export_tensors(model, layout))
    for one, tensor in nc.export_tensors(other, layout):
        assert one.startswith("0.") or same(tensor, kept[one])


@pytest.mark.parametrize("name", ["fp8_block128", "fp8_e4m3", "nvfp4"])
def test_codes_of_experts_for_plain_ones(name, tmp_path):
    def stacks():
        one = nn.ModuleDict({"experts": Experts(), "other": nn.Linear(128, 128)})
        one["experts"].w1 = nn.Parameter(torch.randn(3, 128, 128))
        return one

    model = nc.convert(stacks(), name, filter=None, parameters="experts.w1")
    nc.export(model, tmp_path / "out", "compressed-tensors", plain_dtype=None)
    other = nc.convert(stacks(), name, filter="other")
    with pytest.raises(ValueError, match=r"other\.weight is F32, and|weight_packed is missing"):
        nc.load_published(other, tmp_path / "out")
    nc.convert(model, name, filter="other")
    nc.export(model, tmp_path / "out", "compressed-tensors", plain_dtype=None, overwrite=True)
    assert nc.load_published(other, tmp_path / "out") == []
    assert torch.equal(other["experts"].w1, quantized(model["experts"].w1).dequantize())


def test_integers_are_no_floats(tmp_path):
    """compressed-tensors' int8, by its configuration and by its dtype."""
    own = {"num_bits": 8, "type": "int", "strategy": "tensor", "symmetric": True}
    group = {"targets": ["Linear"], "weights": own, "format": "int-quantized"}
    config = {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}
    for dtype in (torch.int8, torch.uint8):
        file = {"0.weight": torch.ones(128, 128, dtype=dtype), "0.weight_scale": torch.ones(1)}
        save_file(file, tmp_path / "model.safetensors")
        (tmp_path / "config.json").write_text(json.dumps({"quantization_config": config}))
        model = nc.convert(nn.Sequential(nn.Linear(128, 128, bias=False)), "fp8_e4m3")
        with pytest.raises(ValueError, match=r"says type int of 0, and float was|is U?I?8, and F8"):
            nc.load_published(model, tmp_path)
    (tmp_path / "config.json").unlink()
    plain = nn.Sequential(nn.Linear(128, 128, bias=False), nn.Linear(32, 32, bias=False))
    nc.convert(plain, "fp8_e4m3", filter="1")
    with pytest.raises(ValueError, match=r"0\.weight is plain in the model, and in the folder"):
        nc.load_published(plain, tmp_path, layout="compressed-tensors")


@pytest.mark.parametrize(
    ("name", "layout", "key", "value"),
    [
        ("fp8_block128", "deepseek", "weight_block_size", [64, 64]),
        ("nvfp4", "modelopt", "quant_algo", "FP8"),
        ("mxfp8_e4m3", "mxfp8", "quant_method", "fp8"),
        ("mxfp8_e4m3", "compressed-tensors", "config_groups", {"group_0": None}),
    ],
)
def test_a_configuration_that_says_otherwise(name, layout, key, value, tmp_path):
    nc.export(build(name), tmp_path / "out", layout)
    path = tmp_path / "out" / "config.json"
    config = json.loads(path.read_text())
    config["quantization_config"][key] = value
    path.write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"config\.json"):
        nc.load_published(build(name, seed=1), tmp_path / "out", layout=layout)


# ---- one rank's error is every rank's ----


def load_what_one_has(mesh, path, change):
    model = nn.Sequential(nn.Linear(256, 384), nn.Linear(384, 128, bias=False))
    model = fully_shard(nc.convert(model, "mxfp8_2d"), mesh=mesh)
    before = [one.to_local().clone() for one in model.state_dict().values()]
    own = Path(path) / str(mesh.get_rank())
    tensors = dict(nc.export_tensors(model, "mxfp8"))
    if change != "folder" or mesh.get_rank() == 0:
        change == "folder" or tensors["0.weight_scale_inv"][383].add_(1)
        own.mkdir()
        save_file({k: v.contiguous() for k, v in tensors.items()}, own / "model.safetensors")
    try:
        nc.load_published(model, own, layout="mxfp8")
    finally:
        after = [one.to_local() for one in model.state_dict().values()]
        assert all(map(torch.equal, before, after))


@pytest.mark.parametrize("change", ["folder", "scale"])
def test_an_error_of_one_rank(change, tmp_path):
    """A scale that differs within a block in the rows of rank 1; a folder that rank 0 alone has."""
    answers = ranks.errors(2, "cpu", load_what_one_has, str(tmp_path), change)
    kind = "FileNotFoundError" if change == "folder" else "ValueError"
    assert [name for name, _ in answers] == [kind, kind]
    assert answers[0][1] == f"rank 1: {answers[1][1]}"
