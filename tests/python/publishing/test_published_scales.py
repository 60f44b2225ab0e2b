"""Files of 128 x 128 blocks whose scales are amax / 448, as DeepSeek-V3's: casts of the masters
that they become make the same bytes again, and of which blocks they do not.
"""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

import narrowcast as nc
from weights import quantized

FORMAT = "fp8_block128_f32"
DRAWN = 1 << 17  # blocks
MOST = np.float32(448)
NO_QUOTIENT = np.uint32(0x3C600004).view(np.float32)  # 448 * it is 448 * a neighbour of it
LARGEST, NEGATIVE_ZERO = 0x7E, 0x80  # codes


def build(format=FORMAT):
    model = nn.Sequential(
        nn.Linear(256, 384), nn.Linear(384, 200), nn.Linear(200, 130, bias=False), nn.Linear(130, 1)
    )
    return nc.convert(model, format)


def blocks_of(array):
    """Views of the blocks of a matrix, or of its scales, by their places."""
    side = 128
    rows, columns = array.shape
    return {
        (i // side, j // side): array[i : i + side, j : j + side]
        for i in range(0, rows, side)
        for j in range(0, columns, side)
    }


def published(weight):
    """Codes and scales of a float32 weight, as DeepSeek makes them: torch's conversion of
    quotients.
    """
    rows, columns = weight.shape
    codes = torch.empty(rows, columns, dtype=torch.float8_e4m3fn)
    scales = torch.empty(-(-rows // 128), -(-columns // 128))
    places = blocks_of(codes)
    for place, block in blocks_of(weight).items():
        scales[place] = torch.from_numpy(np.asarray(block.abs().max().numpy() / MOST))
        places[place].copy_((block / scales[place]).to(torch.float8_e4m3fn))
    return codes, scales


def file_of(model, folder, change=lambda codes, scales: None):
    """Random weights of many sizes, published: the tensors of the file."""
    from safetensors.torch import save_file

    torch.manual_seed(0)
    tensors = {}
    for i, layer in enumerate(model):
        weight = torch.randn(layer.weight.shape) * 0.02 * 1.7**i
        weight *= torch.logspace(0, -3, weight.shape[1])
        codes, scales = published(weight.bfloat16().float() if i == 1 else weight)
        change(codes, scales)
        tensors |= {f"{i}.weight": codes, f"{i}.weight_scale_inv": scales}
        if layer.bias is not None:
            tensors[f"{i}.bias"] = torch.randn(layer.bias.shape)
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    return tensors


def step(model, gradients):
    optimizer = nc.FusedAdam(model.parameters(), lr=0, weight_decay=0)
    for parameter in model.parameters():
        parameter.grad = gradients(parameter.shape)
    optimizer.step()


def exported(model):
    return dict(nc.export_tensors(model, "deepseek", plain_dtype=None))


def bytes_of(tensor):
    return tensor.view(torch.uint8) if tensor.dtype == torch.float8_e4m3fn else tensor


def without_signs_of_zeros(tensor):
    codes = bytes_of(tensor)
    if tensor.dtype != torch.float8_e4m3fn:
        return codes
    return torch.where(codes == NEGATIVE_ZERO, 0, codes)


@pytest.mark.parametrize("gradients", [torch.zeros, torch.randn])
def test_a_step_without_a_change_leaves_a_file_as_it_is(gradients, tmp_path):
    """A zero alone may lose its sign, which Adam adds a zero of the gradient's sign to."""
    model = build()
    file = file_of(model, tmp_path / "out")
    for name, codes in file.items():
        if codes.dtype == torch.float8_e4m3fn:
            for block in blocks_of(bytes_of(codes)).values():
                assert (block & 0x7F).max() == LARGEST, f"a block of {name} has no largest code"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert nc.load_published(model, tmp_path / "out", layout="deepseek") == []
    step(model, gradients)
    after = exported(model)
    assert after.keys() == file.keys()
    for name, tensor in file.items():
        kept = bytes_of if gradients is torch.zeros else without_signs_of_zeros
        assert torch.equal(kept(tensor), kept(after[name])), name


def test_a_step_makes_powers_of_two_in_another_format(tmp_path):
    model = build("fp8_block128")
    file = file_of(model, tmp_path / "out")
    with pytest.warns(UserWarning, match=f"{FORMAT} would keep all but 0") as said:
        nc.load_published(model, tmp_path / "out", layout="deepseek")
    loaded = exported(model)
    assert all(torch.equal(bytes_of(file[name]), bytes_of(loaded[name])) for name in file)
    step(model, torch.zeros)
    after = exported(model)
    for i in range(len(model)):
        codes, scales = after[f"{i}.weight"], after[f"{i}.weight_scale_inv"]
        assert (scales.log2() == scales.log2().round()).all()
        assert (bytes_of(codes) != bytes_of(file[f"{i}.weight"])).float().mean() > 0.5
    changed = [
        (one.view(torch.uint8) != file[name].view(torch.uint8)).sum().item()
        for name, one in after.items()
        if "weight" in name
    ]
    assert f" {sum(changed)} are not those of a cast" in str(said[0].message)


def test_blocks_that_do_not_come_back(tmp_path):
    """Zeros, a largest code of 224 and one of 416, and a scale that is no quotient."""

    def change(codes, scales):
        if codes.shape != (384, 256):
            return
        places = blocks_of(codes)
        places[0, 0].copy_(torch.zeros(128, 128))
        places[0, 1].copy_((places[0, 1].float() / 2).to(torch.float8_e4m3fn))
        places[1, 0].copy_(places[1, 0].float().clamp(-416, 416).to(torch.float8_e4m3fn))
        scales[1, 1] = float(NO_QUOTIENT)

    model = build()
    file = file_of(model, tmp_path / "out", change)
    nc.load_published(model, tmp_path / "out", layout="deepseek")
    value = quantized(model[0].weight).dequantize()
    step(model, torch.zeros)
    after = exported(model)
    before, now = file["0.weight_scale_inv"].numpy(), after["0.weight_scale_inv"].numpy()
    codes = [blocks_of(bytes_of(tensors["0.weight"])) for tensors in (file, after)]
    moved = {place for place in codes[0] if before[place] != now[place]}
    recast = {place for place in codes[0] if not torch.equal(*(one[place] for one in codes))}
    assert moved == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert recast == {(0, 1), (1, 0)}
    assert now[0, 0] == 1
    assert now[0, 1] == before[0, 1] / 2
    assert now[1, 0] == np.float32(416) * before[1, 0] / MOST
    assert abs(int(now[1, 1].view(np.int32)) - int(before[1, 1].view(np.int32))) == 1
    squares = zip(
        blocks_of(value).values(),
        blocks_of(quantized(model[0].weight).dequantize()).values(),
        strict=True,
    )
    same = [torch.equal(*pair) for pair in squares]
    assert same == [True, True, False, False, True, True]
    for name in file.keys() - {"0.weight", "0.weight_scale_inv"}:
        assert torch.equal(bytes_of(file[name]), bytes_of(after[name]))
    step(model, torch.zeros)  # what is a quotient now stays
    again = exported(model)
    assert all(torch.equal(bytes_of(after[name]), bytes_of(again[name])) for name in file)


def drawn_blocks(scales, largest, rng):
    """A row with a block for each scale, of random codes up to `largest`, which one of each has."""
    codes = rng.integers(0, largest + 1, (len(scales), 128), dtype=np.uint8)
    codes[np.arange(len(scales)), rng.integers(0, 128, len(scales))] = largest
    codes |= rng.integers(0, 2, codes.shape, dtype=np.uint8) << 7
    value = torch.from_numpy(codes).view(torch.float8_e4m3fn).float().numpy() * scales[:, None]
    return codes.reshape(1, -1), torch.from_numpy(value.reshape(1, -1))


def cast(value, device):
    q = nc.quantize(value.to(device), FORMAT)
    return q.rowwise_data.cpu().numpy(), q.rowwise_scale_inv.cpu().numpy().reshape(-1)


def test_drawn_scales_come_back(device):
    """Of amaxes from the least float to the largest."""
    rng = np.random.default_rng(1)
    amaxes = rng.integers(1, 0x7F800000, DRAWN, dtype=np.uint32).view(np.float32)
    scales = np.maximum(amaxes / MOST, np.float32(2.0**-128))
    codes, value = drawn_blocks(scales, LARGEST, rng)
    got_codes, got_scales = cast(value, device)
    assert np.array_equal(got_scales[:DRAWN].view(np.uint32), scales.view(np.uint32))
    assert np.array_equal(got_codes, codes)


def test_drawn_scales_that_are_no_quotients_move_once(device):
    rng = np.random.default_rng(2)
    significands = rng.integers(1 << 23, 1 << 24, DRAWN, dtype=np.uint32)
    scales = np.ldexp(significands.astype(np.float32), rng.integers(-140, 90, DRAWN) - 23)
    codes, value = drawn_blocks(scales, LARGEST, rng)
    got_codes, got_scales = cast(value, device)
    steps = got_scales[:DRAWN].view(np.int32) - scales.view(np.int32)
    normal = scales >= np.float32(2.0**-126)
    expected = (significands % 8 == 4) & (7 * significands.astype(np.int64) >= 1 << 26)
    assert np.array_equal((steps != 0)[normal], expected[normal])
    assert set(steps[normal]) == {-1, 0, 1}
    assert np.array_equal(got_codes.reshape(DRAWN, 128)[normal], codes.reshape(DRAWN, 128)[normal])
    moved = torch.from_numpy(codes).view(torch.float8_e4m3fn).float().reshape(DRAWN, 128)
    again = cast((moved * torch.from_numpy(got_scales[:DRAWN, None])).reshape(1, -1), device)
    assert np.array_equal(again[1], got_scales)


@pytest.mark.parametrize("largest", [0x76, 0x7D, 0x50, 0x08, 0x01])
def test_drawn_blocks_without_the_largest_code(largest, device):
    """A new scale, that of the amax; a power of two below the largest, the same values."""
    rng = np.random.default_rng(3)
    scales = np.exp2(rng.uniform(-40, 40, 1 << 12)).astype(np.float32) / MOST
    _, value = drawn_blocks(scales, largest, rng)
    _, got = cast(value, device)
    amaxes = value.reshape(-1, 128).abs().amax(1).numpy()
    assert np.array_equal(got[: len(scales)], amaxes / MOST)
    assert (got[: len(scales)] < scales).all()
    same = nc.quantize(value.to(device), FORMAT).dequantize().cpu()
    assert torch.equal(same, value) == (largest == 0x76)
