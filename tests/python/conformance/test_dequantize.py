"""Every stored code under every stored scale decodes as the reference says, in both usages."""

import numpy as np
import pytest
import torch

import narrowcast as nc
import reference
from conformance import FORMATS, narrowed
from models import DEVICES
from reference.floats import FLT_MAX
from reference.layout import block_grid, pack, store_scales

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
    truth = reference.Quantized(amax=np.array([amax], np.float32))
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
    if q.amax is not None:
        q.amax.fill_(float(amax))
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
