"""nc.load_published of files that others have made, that are damaged, or that a format does not
hold: an error leaves the model as it is.
"""

import re

import pytest
import torch
from torch import nn

import narrowcast as nc
from published_models import GLOBAL, Experts, build


def states(model):
    return [one.clone() for one in model.state_dict().values()]


def damaged(folder, change):
    """The folder with one file changed by change(tensors)."""
    from safetensors.torch import load_file, save_file

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
            r"0\.weight is F32, and F8_E4M3 or U8 was expected",
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
    assert torch.equal(other[0].weight.dequantize(), build("mxfp8_2d")[0].weight.dequantize())


def test_the_formats_that_would_hold_them(tmp_path):
    nc.export(build("fp8_block128"), tmp_path / "out", "deepseek")
    with pytest.raises(ValueError, match="formats that hold what is there: fp8_block128"):
        nc.load_published(build("mxfp8_2d"), tmp_path / "out")


def test_what_would_hold_blocks_where_a_format_has_one_scale(tmp_path):
    nc.export(build("mxfp8_e4m3"), tmp_path / "out", "compressed-tensors")
    with pytest.raises(ValueError, match="formats that hold what is there: mxfp8_2d, mxfp8_e4m3"):
        nc.load_published(build("fp8_e4m3"), tmp_path / "out")
