"""Products by a unit of sm_89 or sm_90, for which narrowcast asks cuBLASLt by itself: they are
those of torch._scaled_mm, to the bit, and torch is asked where it knows what narrowcast does not.
"""

import subprocess
import sys

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import narrowcast as nc
import scaled
from internals import bytes_of
from narrowcast import _C

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no unit")

TENSOR, SQUARES, GROUPS = "fp8_e4m3", "fp8_block128", "fp8_block1x128"
MIXED = "fp8_block1x128_128x128"  # in squares for the sum over rows
DTYPES = [torch.bfloat16, torch.float16, torch.float32]


def operand(kept, summed, format, columnwise=False):
    """Of [kept, summed], from the usage that is made for the sum; and its tensors, as graphs hold
    them.
    """
    value = torch.randn((summed, kept) if columnwise else (kept, summed), device="cuda")
    usages = {"rowwise": not columnwise, "columnwise": columnwise}
    bytes = bytes_of(nc.quantize(value, format, **usages))
    usage = "columnwise" if columnwise else "rowwise"
    stored = [b for b in bytes.buffers if b is not None]
    return _C.Operand(bytes, usage, columnwise), stored


CASES = {
    "one scale each": (TENSOR, TENSOR, False),
    "one of them e5m2": ("fp8_e5m2", TENSOR, False),
    "1x128 by 128x128": (GROUPS, SQUARES, False),
    "1x128 by 128x128, over rows": (GROUPS, MIXED, True),
    "1x128 by 1x128": (GROUPS, GROUPS, True),
}


def kind_of(a, b):
    """The kind of a product of two formats (the number of a Product)."""
    return 1 if TENSOR in (a, b) else 3 if b == GROUPS else 2


def products(a_format, b_format, columnwise, rows, summed, columns, dtype):
    """By narrowcast, and by torch."""
    torch.manual_seed(rows)
    kind = kind_of(a_format, b_format)
    a, a_stored = operand(rows, summed, a_format, columnwise)
    b, b_stored = operand(columns, summed, b_format, columnwise)
    if not _C.has_tensor_cores(torch.empty(0, device="cuda").device, kind):
        pytest.skip("this GPU has no such unit")
    usage = int(columnwise)
    told = (a_stored, a_format, usage, columnwise), (b_stored, b_format, usage, columnwise)

    def own():
        return torch.ops.narrowcast.scaled_mm(*told[0], *told[1], kind, True, dtype)

    left, right = _C.tensor_core_operand(a, kind), _C.tensor_core_operand(b, kind)
    through = torch.float32 if kind != 1 and dtype == torch.float16 else dtype
    torchs = torch._scaled_mm(
        left.codes,
        right.codes.t(),
        left.scales,
        right.scales.t(),
        out_dtype=through,
        use_fast_accum=kind == 1,
    ).to(dtype)
    return own, torchs


def asks_torch(call):
    """Whether a call is a call of torch._scaled_mm."""
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        call()
    return "aten::_scaled_mm" in {event.name for event in seen.events()}


@pytest.mark.parametrize("name", [TENSOR, SQUARES])
@pytest.mark.parametrize("rows", [1, 5, 64, 1001])
@pytest.mark.parametrize("width", [16, 144, 1008])
def test_any_rows_are_a_units(name, rows, width):
    """Nothing of a layer is decoded, whatever the number of rows, and of widths in steps of 16."""
    forward = nc.format(name).matmul.forward
    if not _C.has_tensor_cores(torch.empty(0, device="cuda").device, forward.number):
        pytest.skip("this GPU has no such unit")
    layer = scaled.layer(name, "cuda", torch.bfloat16, width, 2 * width)
    with torch.no_grad():
        layer.bias.zero_()
    x = torch.randn(rows, width, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        out = layer(x)
        out.backward(torch.ones_like(out))
        torch.cuda.synchronize()
    assert out.shape == (rows, 2 * width)
    assert x.grad.shape == x.shape
    names = {event.name for event in seen.events()}
    assert not any("decoding_kernel" in name or name == "aten::mm" for name in names)
    assert scaled.row_error(out, scaled.forward(x, layer.weight)) <= 2**-7


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(4, 512, 16), (128, 1024, 256), (1000, 4096, 528)], ids=str)
def test_as_torchs(case, dtype, shape):
    own, torchs = products(*CASES[case], *shape, dtype)
    for _ in range(2):  # the second knows the algorithm
        assert torch.equal(own(), torchs)
    assert not asks_torch(own)


def test_multiprocessors_are_left_to_others():
    own, torchs = products(*CASES["one scale each"], 128, 512, 256, torch.bfloat16)
    torch._C._set_sm_carveout_experimental(16)
    try:
        assert asks_torch(own)
        assert torch.equal(own(), torchs)
    finally:
        torch._C._set_sm_carveout_experimental(None)
    assert not asks_torch(own)


def test_codes_at_any_multiple_of_16():
    """Other algorithms may be asked for where memory is less aligned than torch's own."""
    (_, a_stored), (_, b_stored) = operand(64, 512, TENSOR), operand(32, 512, TENSOR)
    told = (TENSOR, 0, False), 1, True, torch.float32
    expected = torch.ops.narrowcast.scaled_mm(a_stored, *told[0], b_stored, *told[0], *told[1:])
    room = torch.empty(a_stored[0].numel() + 16, dtype=torch.uint8, device="cuda")[16:]
    moved = room.view_as(a_stored[0]).copy_(a_stored[0])
    got = torch.ops.narrowcast.scaled_mm(
        [moved, *a_stored[1:]], *told[0], b_stored, *told[0], *told[1:]
    )
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-3)


def test_operands_of_two_devices():
    layer = scaled.layer(TENSOR, "cpu", torch.bfloat16)
    with pytest.raises(ValueError, match="a product's operands are on cuda:0 and on cpu"):
        layer(torch.randn(16, 96, device="cuda", dtype=torch.bfloat16))


CAPTURE = """
import torch, narrowcast as nc
def stored():
    bytes = nc.quantize(torch.randn(64, 512, device="cuda"), "fp8_e4m3")._store.bytes
    return [bytes.buffer(0), bytes.buffer(1)]
a, b = stored(), stored()
def product():
    rowwise = "fp8_e4m3", 0, False
    return torch.ops.narrowcast.scaled_mm(
        a, *rowwise, b, *rowwise, 1, False, torch.float32)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    out = product()
graph.replay()
assert torch.equal(out, product())
"""


def test_the_first_product_is_captured():
    """Of a process: the library is set up while a CUDA graph is being captured."""
    done = subprocess.run([sys.executable, "-c", CAPTURE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_many_shapes():
    """Of more shapes than are kept, each is right."""
    b, b_stored = operand(16, 16, TENSOR)
    for rows in range(1, 4200):
        a = [
            torch.full((rows, 16), 0x38, dtype=torch.uint8, device="cuda"),
            b_stored[1],
            *b_stored[2:],
        ]
        got = torch.ops.narrowcast.scaled_mm(
            a, TENSOR, 0, False, b_stored, TENSOR, 0, False, 1, False, torch.float32
        )
        if rows % 600 == 1:
            ones = torch.ones(rows, 16, device="cuda") * b_stored[1].float()
            assert torch.allclose(got, ones @ value_of(b).t(), rtol=1e-3)


def value_of(bytes_operand):
    unit = _C.tensor_core_operand(bytes_operand, 1)
    return unit.codes.float() * unit.scales
