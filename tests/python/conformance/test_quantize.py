"""nc.quantize and its reverse against the reference, byte for byte, for every loaded format; and
every stored code under every stored scale.
"""

import itertools

import numpy as np
import pytest
import torch

import narrowcast as nc
import reference
import values
from conformance import (
    BUFFERS,
    FORMAT_NAMES,
    FORMATS,
    KINDS,
    ON_DEVICES,
    ROOT,
    assert_same,
    narrowed,
    usages,
)
from models import DEVICES, STORAGES
from reference.floats import FLT_MAX
from reference.layout import block_grid, pack, store_scales

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
FEW_KINDS = pytest.mark.parametrize("kind", ["random", "points", "thresholds_1x16", "random_bits"])


SMALL = [
    *[(1, 1), (1, 32), (32, 1), (1, 16), (16, 48), (32, 32), (33, 31), (36, 52), (64, 64)],
    *[(65, 96), (96, 65), (100, 60), (127, 400), (128, 128), (129, 257), (256, 272), (256, 288)],
    *[(256, 1024), (303, 300), (304, 304), (305, 256), (320, 320), (352, 256), (993, 512)],
    *[(1024, 1), (1, 4096), (0, 64), (64, 0)],
]
# Of millions of elements, which threads share out: formats by how they are stored, in turn with
# whole tiles and with others.
MILLIONS = [
    pytest.param(name, (size, size), marks=pytest.mark.slow)
    for name, size in zip(STORAGES, itertools.cycle((2000, 2048)), strict=False)
]
CASES = [*itertools.product(FORMATS, SMALL), *MILLIONS]


LARGE = [(8192, 8192), (8192, 5120), (14336, 4096)]


def test_shipped_formats_are_loaded():
    shipped = {path.stem for path in (ROOT / "spec").glob("*.toml")}
    assert shipped
    assert shipped <= set(FORMATS)


def check(x, name, device="cpu", source="master"):
    """Quantizes on the device, in all the usages that the shape allows, and compares."""
    fmt, wanted = FORMATS[name], usages(FORMATS[name], x.shape)
    if not any(wanted.values()):
        return
    truth = reference.quantize(x.float().numpy(), fmt, source=source, **wanted)
    got = nc.quantize(x.to(device), name, source=source, **wanted)
    assert_same(got, truth, f"{name} {tuple(x.shape)} {x.dtype} {device}")


@ON_DEVICES
@pytest.mark.parametrize(("name", "shape"), CASES, ids=str)
def test_shapes(name, device, shape):
    """Values at thresholds, and ordinary ones; the reference is slow, so millions have one kind."""
    rng, kinds = np.random.default_rng(shape), ["thresholds_1x8", "random"]
    if shape == (2000, 2000):
        kinds.pop()
    if shape == (2048, 2048):
        kinds.pop(0)
    for kind in kinds:
        if 0 in shape:
            x = np.empty(shape, np.float32)
        elif kind == "random":
            x = values.random(shape, rng)
        else:
            x = values.blocks_of(values.AMAXES, (1, 8), shape, rng).astype(np.float32)
        check(torch.from_numpy(x), name, device)


@FORMAT_NAMES
@ON_DEVICES
@pytest.mark.parametrize("kind", KINDS)
def test_values(name, device, kind):
    rng = np.random.default_rng(len(kind))
    large = (512, 512) if kind.startswith("thresholds") else (160, 288)  # each has many blocks
    for shape in (large, (100, 60)):
        check(torch.from_numpy(KINDS[kind](shape, rng)), name, device)


@FORMAT_NAMES
@ON_DEVICES
@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
@FEW_KINDS
def test_narrow_input(name, device, dtype, kind):
    x = KINDS[kind]((256, 288), np.random.default_rng(1))
    check(torch.from_numpy(x).to(dtype), name, device)


@FORMAT_NAMES
@ON_DEVICES
@FEW_KINDS
def test_source_bf16(name, device, kind):
    x = KINDS[kind]((256, 288), np.random.default_rng(2))
    check(torch.from_numpy(x), name, device, source="bf16")


@FORMAT_NAMES
@ON_DEVICES
@pytest.mark.parametrize(("rowwise", "columnwise"), [(True, False), (False, True)])
def test_one_usage_alone_has_the_same_bytes(name, device, rowwise, columnwise):
    x = values.points((160, 96), np.random.default_rng(3))
    truth = reference.quantize(x, FORMATS[name], rowwise=rowwise, columnwise=columnwise)
    got = nc.quantize(torch.from_numpy(x).to(device), name, rowwise=rowwise, columnwise=columnwise)
    assert_same(got, truth, name)


@FORMAT_NAMES
@ON_DEVICES
def test_strided_and_offset_input(name, device):
    base = torch.from_numpy(values.points((160, 320), np.random.default_rng(4)))
    for view in (
        base.T,
        base[:, ::2],
        base[1:129, 3:67],
        base.flatten()[5 : 5 + 64 * 64].view(64, 64),
    ):
        truth = reference.quantize(view.contiguous().numpy(), FORMATS[name])
        moved = base.to(device)
        again = torch.as_strided(moved, view.shape, view.stride(), view.storage_offset())
        assert_same(nc.quantize(again, name), truth, f"{name} {tuple(view.stride())}")


@FORMAT_NAMES
@ON_DEVICES
@FEW_KINDS
def test_dequantize(name, device, kind):
    x = KINDS[kind]((160, 288), np.random.default_rng(6))
    q = nc.quantize(torch.from_numpy(x).to(device), name)
    truth = reference.quantize(x, FORMATS[name])
    for usage, dtype in itertools.product(("rowwise", "columnwise"), DTYPES):
        expected = narrowed(reference.dequantize(truth, FORMATS[name], x.shape, usage), dtype)
        got = q.dequantize(dtype=dtype, usage=usage)
        assert got.dtype == dtype
        same = reference.same_bits(got.float().cpu().numpy(), expected)
        assert same, f"{name} {usage} {kind} {dtype}"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@FORMAT_NAMES
@pytest.mark.parametrize("shape", LARGE, ids=str)
def test_the_machines_agree_on_large_matrices(name, shape):
    """168 million elements of any 32 bits, and as many ordinary ones: GPU bytes are CPU bytes."""
    rng = np.random.default_rng(shape)
    for x in (values.random_bits(shape, rng), rng.standard_normal(shape, np.float32)):
        on_cpu = nc.quantize(torch.from_numpy(x), name)
        on_gpu = nc.quantize(torch.from_numpy(x).cuda(), name)
        for buffer in (*BUFFERS, "tensor_amax"):
            ours, theirs = getattr(on_cpu, buffer), getattr(on_gpu, buffer)
            assert (ours is None) == (theirs is None)
            assert ours is None or torch.equal(
                ours.view(torch.uint8), theirs.cpu().view(torch.uint8)
            )


# The least scale that is made, its neighbours in size, and what no cast writes.
F32_SCALES = (1, 0.37, 2.0**-127, 2.9387e-39, 2.0**-149, 2.0**120, FLT_MAX, 0, np.inf, np.nan)


TENSOR_AMAXES = (6, 0.02, 1e-36, 1e-40, FLT_MAX, np.inf, 0)


def scales_of(fmt):
    if fmt.scale == "f32":
        return np.array(F32_SCALES, np.float32)
    return np.arange(256, dtype=np.uint8)


def matrix(usage, scales, codes):
    """(codes, scales of blocks): each block has one scale, and all codes are under each scale."""
    if usage.block is None:
        shape = (4, len(codes))
        return np.broadcast_to(codes, shape), np.array([[scales]]), shape
    rows, columns = usage.block
    tall = columns == 1  # scales differ from column to column, codes down a column
    shape = (len(codes), len(scales)) if tall else (rows * len(scales), max(len(codes), columns))
    spread = codes[:, None] if tall else np.resize(codes, shape[1])[None, :]
    grid = block_grid(shape, usage.block)
    per_block = scales[None, :] if tall else scales[:, None]
    return np.broadcast_to(spread, shape), np.broadcast_to(per_block, grid), shape


def decoded(name, usage, codes, per_block, shape, amax, dtype, device):
    """(the library's values, the reference's) of bytes that no cast need have written."""
    fmt = FORMATS[name]
    data = np.ascontiguousarray(pack(codes, getattr(fmt, usage), fmt))
    scale = store_scales(np.ascontiguousarray(per_block), getattr(fmt, usage), shape)
    truth = reference.Quantized(tensor_amax=np.array([amax], np.float32))
    setattr(truth, f"{usage}_data", data)
    setattr(truth, f"{usage}_scale_inv", scale)
    q = nc.quantize(
        torch.zeros(shape, device=device),
        name,
        rowwise=usage == "rowwise",
        columnwise=usage == "columnwise",
    )
    getattr(q, f"{usage}_data").copy_(torch.from_numpy(data))
    getattr(q, f"{usage}_scale_inv").copy_(torch.from_numpy(scale))
    if q.tensor_amax is not None:
        q.tensor_amax.fill_(float(amax))
    got = q.dequantize(dtype=dtype, usage=usage).float().cpu().numpy()
    return got, narrowed(reference.dequantize(truth, fmt, shape, usage), dtype)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("usage", ["rowwise", "columnwise"])
def test_every_code_under_every_scale(name, device, usage):
    fmt = FORMATS[name]
    codes = np.arange(1 << fmt.element.bits, dtype=np.uint8)
    facts = getattr(fmt, usage)
    for scales in scales_of(fmt) if facts.block is None else [scales_of(fmt)]:
        spread, per_block, shape = matrix(facts, scales, codes)
        for amax in TENSOR_AMAXES if fmt.tensor_scale else (0,):
            for dtype in (torch.float32, torch.bfloat16, torch.float16):
                got, truth = decoded(name, usage, spread, per_block, shape, amax, dtype, device)
                assert reference.same_bits(got, truth), f"{dtype}, amax {amax}"
