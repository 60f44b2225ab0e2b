"""Tensors of more than 2^31 elements on the GPU: the first rows, those across element 2^31 and the
last ones have the bytes that the CPU makes of them alone. The same tests run on small tensors
everywhere, so that they are tested themselves.
"""

import pytest
import torch
from torch import nn

import narrowcast as nc
from models import DEVICES, assert_same, same
from weights import quantized

TESTED_FORMATS = nc.formats()
ALIGNED = 128  # rows at which every format can be cut, and columns too
SMALL = (2 * ALIGNED + 36, 384)
TALL = (34308, 65536)  # 2.25e9 elements; the last block of rows is not whole
WIDE = (132, 17_039_872)  # 2.25e9 elements; there are as many stored rows where transposed
PEAK = 12.0  # above all other values: the amax of every window is the amax of the whole


def memory_for(gigabytes):
    return torch.cuda.is_available() and torch.cuda.mem_get_info()[1] > gigabytes * 1e9


HUGE = pytest.mark.skipif(not memory_for(100), reason="needs a GPU with 100 GB")
SIZES = [
    *[pytest.param(device, SMALL, id=f"small-{device}") for device in DEVICES],
    pytest.param("cuda", TALL, id="tall", marks=HUGE),
]
ON_SIZES = pytest.mark.parametrize(("device", "shape"), SIZES)


@pytest.fixture(autouse=True)
def returned_memory():
    yield
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def windows(rows, columns):
    """Ranges of rows: the first, those across element 2^31 (or the middle), the last."""
    across = min(2**31 // columns, rows // 2) // ALIGNED * ALIGNED
    last = (rows - 1) // ALIGNED * ALIGNED
    return [(0, ALIGNED), (across, across + ALIGNED), (last, rows)]


def values(shape, device, dtype):
    """Ordinary values, drawn on the device; the first element of each window is the largest."""
    generator = torch.Generator(device).manual_seed(0)
    x = torch.empty(shape, device=device, dtype=dtype).normal_(generator=generator)
    for begin, _ in windows(*shape):
        x[begin, 0] = PEAK
    return x


def compare(q, x):
    """The windows of q, as views, have the bytes of the CPU's quantization of those rows."""
    for begin, end in windows(*x.shape):
        expected = nc.quantize(x[begin:end].cpu(), q.format)
        part = q[begin:end]
        assert_same(part.clone().cpu(), expected, what=f"rows {begin} to {end}")
        for usage in ("rowwise", "columnwise"):
            got = part.dequantize(usage=usage).cpu()
            assert torch.equal(got, expected.dequantize(usage=usage)), (begin, usage)


@ON_SIZES
def test_quantize_dequantize_and_views(format, device, shape):
    x = values(shape, device, torch.bfloat16)
    q = nc.quantize(x, format)
    compare(q, x)
    for usage in ("rowwise", "columnwise"):
        whole = q.dequantize(torch.bfloat16, usage=usage)
        for begin, end in windows(*shape):
            expected = nc.quantize(x[begin:end].cpu(), format).dequantize(torch.bfloat16, usage)
            assert torch.equal(whole[begin:end].cpu(), expected), (begin, usage)
        del whole


@ON_SIZES
def test_derived_columnwise(format, device, shape):
    if not nc.format(format).columnwise_derived:
        return
    x = values(shape, device, torch.bfloat16)
    rowwise = nc.quantize(x, format, columnwise=False)
    target = nc.quantize(torch.zeros_like(x), format)
    target.copy_(rowwise)
    compare(target, x)


@pytest.mark.parametrize(
    ("device", "shape"), [*SIZES[:-1], pytest.param("cuda", WIDE, id="wide", marks=HUGE)]
)
def test_long_rows(format, device, shape):
    """The first columns, those in the middle and the last ones."""
    x = values(shape, device, torch.bfloat16)
    blocks = shape[1] // ALIGNED
    starts = [0, blocks // 2 * ALIGNED, (blocks - 1) * ALIGNED]
    x[0, starts] = PEAK
    q = nc.quantize(x, format)
    for usage in ("rowwise", "columnwise"):
        whole = q.dequantize(torch.bfloat16, usage=usage)
        for begin in starts:
            part = x[:, begin : begin + ALIGNED].cpu()
            expected = nc.quantize(part, format).dequantize(torch.bfloat16, usage=usage)
            assert torch.equal(whole[:, begin : begin + ALIGNED].cpu(), expected), (begin, usage)
        del whole


def trained(weight, gradient, format, steps=2):
    """(the weight after some steps of FusedAdam, its state)."""
    layer = nn.Linear(1, 1, bias=False)
    layer.weight = nn.Parameter(weight)
    parameter = nc.convert(layer, format).weight
    optimizer = nc.FusedAdam([parameter], lr=1e-2)
    parameter.grad_dtype = None  # narrower gradients than the weight
    parameter.grad = gradient
    for _ in range(steps):
        optimizer.step()
    return parameter.detach(), optimizer.state[parameter]


@ON_SIZES
def test_fused_adam(format, device, shape):
    weight = values(shape, device, torch.float32)
    gradient = values(shape, device, torch.bfloat16)
    own = windows(*shape)
    rows = [(weight[a:b].to("cpu", copy=True), gradient[a:b].cpu()) for a, b in own]
    parameter, state = trained(weight, gradient, format)
    del weight
    for (begin, end), (w, g) in zip(own, rows, strict=True):
        expected, expected_state = trained(w, g, format)
        what = f"rows {begin} to {end}"
        assert_same(quantized(parameter)[begin:end].clone().cpu(), expected, what=what)
        assert same(parameter.value[begin:end], expected.value), what
        for key in ("exp_avg", "exp_avg_sq"):
            assert same(state[key][begin:end], expected_state[key]), (what, key)
