"""What matrix units are given: operands that have the values that the library decodes. Those of
sm_100 against the published definitions of codes and of the order of scales.
"""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import narrowcast as nc
import scaled
from internals import bytes_of
from narrowcast import _C

TENSOR, SQUARES, GROUPS, MX, NVFP4 = range(1, 6)  # numbers of the kinds
GROUP = {MX: 32, NVFP4: 16}
SCALES = {MX: torch.float8_e8m0fnu, NVFP4: torch.float8_e4m3fn}
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


def up(n, multiple):
    return -(-n // multiple) * multiple


def places(rows, groups):
    """Where cuBLAS reads the scale of each row and group, int64 [rows, groups]: tiles of 128 x 4,
    row-major; in a tile, (row % 32) * 16 + (row / 32) * 4 + group.
    """
    row, group = torch.arange(rows)[:, None], torch.arange(groups)[None, :]
    tile = row // 128 * (up(groups, 4) // 4) + group // 4
    return tile * 512 + row % 128 % 32 * 16 + row % 128 // 32 * 4 + group % 4


@pytest.mark.parametrize("dtype", [torch.uint8, *SCALES.values()], ids=str)
@pytest.mark.parametrize("rows", [0, 1, 31, 32, 33, 96, 127, 128, 129, 300])
@pytest.mark.parametrize("groups", [1, 3, 4, 5, 8, 17])
def test_swizzled_scales(device, dtype, rows, groups):
    """Each scale is where the definition has it, all other bytes are zero; of any strides."""
    torch.manual_seed(0)
    scales = torch.randint(1, 256, (rows, groups), dtype=torch.uint8, device=device)
    for given in (scales, scales.t().contiguous().t()):
        got = _C.swizzled(given.view(dtype))
        assert got.dtype == dtype
        assert got.device == scales.device
        assert got.is_contiguous()
        expected = torch.zeros(up(rows, 128) * up(groups, 4), dtype=torch.uint8, device=device)
        expected[places(rows, groups).to(device)] = scales
        assert torch.equal(got.view(torch.uint8), expected)


def values(operand, kind):
    """The values that a unit reads in an operand, float64 [kept, summed]."""
    if kind == NVFP4:
        packed = operand.codes.view(torch.uint8)
        codes = torch.stack([packed & 15, packed >> 4], dim=-1).flatten(1)
        elements = E2M1[codes.long()].double()
    else:
        elements = operand.codes.double()
    kept, summed = elements.shape
    scales = operand.scales.float().double()[places(kept, -(-summed // GROUP[kind]))]
    value = elements * scales.repeat_interleave(GROUP[kind], dim=1)[:, :summed]
    return value if operand.spanning_scale is None else value * operand.spanning_scale.double()


BOTH = ("rowwise", "columnwise")


def cast(x, name, usages=BOTH):
    return bytes_of(nc.quantize(x, name, **{usage: usage in usages for usage in BOTH}))


def decoded(bytes, usage, over_rows):
    value = bytes.decode(usage, torch.float32).double()
    return value.t() if over_rows else value


def operands_of(kind):
    """(kind, format, its usages, usage, over_rows) of each operand of the products of a kind."""
    found = set()
    for weight in scaled.SCALED:
        p, derived = nc.format(weight).matmul, nc.format(weight).columnwise_derived
        if p.forward.number == kind:
            found |= {(f, BOTH, "rowwise", False) for f in (p.input, weight)}
        if p.input_gradient.number == kind:
            found |= {(p.gradient, BOTH, "rowwise", False), (weight, BOTH, "columnwise", True)}
            found |= {(weight, ("rowwise",), "rowwise", True)} if derived else set()
        if p.weight_gradient.number == kind:
            found |= {(f, BOTH, "columnwise", True) for f in (p.input, p.gradient)}
    return [(kind, *operand) for operand in sorted(found)]


OPERANDS = operands_of(MX) + operands_of(NVFP4)


def test_both_kinds_occur():
    assert {kind for kind, *_ in OPERANDS} == {MX, NVFP4}


@pytest.mark.parametrize(("kind", "name", "usages", "usage", "over_rows"), OPERANDS)
@pytest.mark.parametrize("shape", [(32, 64), (96, 160), (160, 96), (128, 256), (1024, 32)], ids=str)
def test_operands(kind, name, usages, usage, over_rows, shape):
    torch.manual_seed(0)
    x = torch.randn(shape) * torch.logspace(-3, 3, shape[1])
    bytes = cast(x, name, usages)
    operand = _C.tensor_core_operand(_C.Operand(bytes, usage, over_rows), kind)
    kept, summed = shape[::-1] if over_rows else shape

    assert operand.scales.dtype == SCALES[kind]
    assert operand.scales.shape == (up(kept, 128) * up(-(-summed // GROUP[kind]), 4),)
    assert (operand.spanning_scale is None) == (kind == MX)
    if kind == NVFP4:
        assert operand.codes.dtype == torch.float4_e2m1fn_x2
        assert operand.codes.shape == (kept, summed // 2)
        assert operand.codes.is_contiguous()  # in this order alone can a unit read them
    else:
        assert operand.codes.shape == (kept, summed)
    if usage in usages and over_rows == (usage == "columnwise"):
        stored = bytes.buffer(2 if over_rows else 0)
        assert operand.codes.data_ptr() == stored.data_ptr(), "codes are not copied"

    expected = decoded(bytes, usage, over_rows)
    torch.testing.assert_close(values(operand, kind), expected, rtol=2**-22, atol=0)


@pytest.mark.parametrize(
    ("kind", "name", "usages", "usage", "over_rows"),
    [operand for kind in (TENSOR, SQUARES, GROUPS) for operand in operands_of(kind)],
)
def test_operands_of_sm_90(kind, name, usages, usage, over_rows):
    """Codes along the sum; scales float32, those of 1x128 with the groups behind one another."""
    torch.manual_seed(0)
    bytes = cast(torch.randn(512, 1024), name, usages)
    operand = _C.tensor_core_operand(_C.Operand(bytes, usage, over_rows), kind)
    kept, summed = (1024, 512) if over_rows else (512, 1024)
    assert operand.codes.shape == (kept, summed)
    assert operand.codes.is_contiguous()
    assert operand.spanning_scale is None
    scales = operand.scales.double()
    if kind == TENSOR:
        assert scales.shape == (1,)
    else:
        groups = summed // 128
        square = scales.shape[0] != kept
        assert scales.shape == (kept // 128 if square else kept, groups)
        assert operand.scales.stride() == ((groups, 1) if square else (1, kept))
        scales = scales.repeat_interleave(kept // scales.shape[0], dim=0)
        scales = scales.repeat_interleave(128, dim=1)
    expected = decoded(bytes, usage, over_rows)
    torch.testing.assert_close(operand.codes.double() * scales, expected, rtol=2**-22, atol=0)


@pytest.mark.parametrize(
    "name", [n for n in scaled.SCALED if nc.format(n).matmul.forward.number in GROUP]
)
@pytest.mark.parametrize("rows", [32, 160])
def test_products_of_the_operands(name, rows):
    """The three products of a layer, of what the unit reads, are those of the decoded operands."""
    p = nc.format(name).matmul
    kind = p.forward.number
    torch.manual_seed(0)
    weight = cast(torch.randn(48, 96), name)
    x = cast(torch.randn(rows, 96), p.input)
    gradient = cast(torch.randn(rows, 48) / 1000, p.gradient)
    for left, right in (
        ((x, "rowwise", False), (weight, "rowwise", False)),
        ((gradient, "rowwise", False), (weight, "columnwise", True)),
        ((gradient, "columnwise", True), (x, "columnwise", True)),
    ):
        a, b = (
            values(_C.tensor_core_operand(_C.Operand(*one), kind), kind) for one in (left, right)
        )
        expected = decoded(*left) @ decoded(*right).t()
        assert scaled.row_error(a @ b.t(), expected) <= 2**-20


@pytest.mark.parametrize("kind", [MX, NVFP4])
def test_torch_takes_the_operands(kind):
    """torch's own check of the arguments of _scaled_mm, which needs no GPU."""
    name = next(f for k, f, _, usage, over_rows in OPERANDS if k == kind and not over_rows)
    a, b = (
        _C.tensor_core_operand(
            _C.Operand(cast(torch.randn(rows, 160), name), "rowwise", False), kind
        )
        for rows in (100, 48)
    )
    given = a.codes, b.codes.t(), a.scales, b.scales
    with FakeTensorMode():
        like = [
            torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="cuda:0") for t in given
        ]
        assert torch._scaled_mm(*like, out_dtype=torch.float32).shape == (100, 48)
        with pytest.raises(RuntimeError, match="scale_a should have"):
            torch._scaled_mm(*like[:2], like[2][512:], like[3])


@pytest.mark.parametrize("kind", [MX, NVFP4])
def test_machines(device, kind):
    on_sm_100 = device == "cuda" and torch.cuda.get_device_capability()[0] == 10
    assert _C.has_tensor_cores(torch.empty(0, device=device).device, kind) == on_sm_100


def suits(kind, rows, summed, columns, over_rows=False):
    """Whether a unit takes [rows, summed] by [columns, summed], of the kind's first format."""
    usage = "columnwise" if over_rows else "rowwise"
    name = next(f for k, f, *_, over in OPERANDS if k == kind and over == over_rows)
    a, b = (
        _C.Operand(
            cast(torch.randn((summed, kept) if over_rows else (kept, summed)), name, [usage]),
            usage,
            over_rows,
        )
        for kept in (rows, columns)
    )
    return _C.suits_tensor_cores(a, b, kind)


@pytest.mark.parametrize("kind", [MX, NVFP4])
def test_shapes(kind):
    assert suits(kind, 1, 32, 16)
    assert suits(kind, 7, 96, 48)
    assert not suits(kind, 16, 48, 16)  # half a group, or 24 bytes a row
    assert not suits(kind, 16, 32, 24)
    assert suits(kind, 48, 32, 16, over_rows=True)
    assert not suits(kind, 48, 16, 16, over_rows=True)
    # 8-bit codes are not stored along the sum here, so rows of what is kept begin in memory.
    assert suits(kind, 40, 32, 16, over_rows=True) == (kind == NVFP4)


@pytest.mark.parametrize(("kind", "name"), sorted({operand[:2] for operand in OPERANDS}))
def test_bytes_of_another_sum(kind, name):
    """A unit sums rowwise bytes over columns and columnwise ones over rows; rowwise ones over rows
    only if columnwise ones follow from them. All else is decoded.
    """
    bytes = cast(torch.randn(32, 32), name)
    takes = {}
    for usage in BOTH:
        for over_rows in (False, True):
            operand = _C.Operand(bytes, usage, over_rows)
            takes[usage, over_rows] = _C.suits_tensor_cores(operand, operand, kind)
    assert takes == {
        ("rowwise", False): True,
        ("rowwise", True): nc.format(name).columnwise_derived,
        ("columnwise", False): False,
        ("columnwise", True): True,
    }
