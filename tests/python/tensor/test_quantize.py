"""nc.quantize: its options, and what it refuses. The bytes are in conformance/test_quantize.py."""

import pytest
import torch

import narrowcast as nc
from models import BUFFERS, assert_same

NAN = float("nan")


def test_result(format, device):
    x = torch.randn(64, 96, device=device, dtype=torch.bfloat16, requires_grad=True)
    q = nc.quantize(x, format)
    assert isinstance(q, nc.QuantizedTensor)
    assert isinstance(q, torch.Tensor)
    assert (q.shape, q.dtype, q.device) == (x.shape, x.dtype, x.device)
    assert not q.requires_grad
    assert q.format is nc.format(format)
    for name in ("rowwise_data", "columnwise_data", "rowwise_scale_inv", "columnwise_scale_inv"):
        for_tensor = q.format.rowwise.block == "tensor" and name.endswith("scale_inv")
        assert getattr(q, name).dim() == (1 if for_tensor else 2)
        assert getattr(q, name).device == x.device
    assert (q.tensor_amax is not None) == nc.format(format).tensor_amax
    assert format in repr(q)


def test_one_usage(format):
    x = torch.randn(64, 64)
    both = nc.quantize(x, format)
    for usage, other in (("rowwise", "columnwise"), ("columnwise", "rowwise")):
        q = nc.quantize(x, format, **{other: False})
        assert getattr(q, f"{other}_data") is None
        assert getattr(q, f"{other}_scale_inv") is None
        assert_same(q, both, [name for name in BUFFERS if not name.startswith(other)])
        assert torch.equal(q.dequantize(usage=usage), both.dequantize(usage=usage))
        with pytest.raises(ValueError, match=f"no {other} bytes.*{other}=True"):
            q.dequantize(usage=other)


def test_scalars_and_one_dimension():
    q = nc.quantize(torch.tensor(3.0), "mxfp8_e4m3")
    assert q.shape == ()
    assert q.rowwise_data.shape == (1, 1)
    assert q.dequantize() == 3.0
    assert nc.quantize(torch.ones(64), "mxfp8_e4m3").rowwise_data.shape == (1, 64)


@pytest.mark.parametrize("shape", [(0, 64), (64, 0), (0, 0), (0,), (2, 0, 64)], ids=str)
def test_empty(format, device, shape):
    usages = {"columnwise": shape != (0,)}
    q = nc.quantize(torch.empty(shape, device=device), format, **usages)
    assert q.shape == shape
    assert q.dequantize().shape == shape
    if q.tensor_amax is not None:
        assert q.tensor_amax.tolist() == [0.0]
    for name in ("rowwise_scale_inv", "columnwise_scale_inv"):
        scale = getattr(q, name)
        if scale is not None and q.format.rowwise.block == "tensor":
            assert scale.tolist() == [1.0]
        elif scale is not None:
            assert scale.count_nonzero() == 0


def test_dequantize_dtypes(format, device):
    q = nc.quantize(torch.randn(64, 64, device=device), format)
    exact = q.dequantize()
    for dtype in (torch.bfloat16, torch.float16):
        assert torch.equal(q.dequantize(dtype), exact.to(dtype))
    with pytest.raises(TypeError, match="float64"):
        q.dequantize(torch.float64)
    with pytest.raises(ValueError, match="sideways"):
        q.dequantize(usage="sideways")


def test_special_values(format):
    """NaN counts for no amax and infinities saturate; numerics.md has the codes."""
    x = torch.randn(64, 64)
    x[3, 3], x[40, 40], x[41, 41] = NAN, float("inf"), -float("inf")
    finite = torch.where(torch.isnan(x), 0, x)
    q, without = nc.quantize(x, format), nc.quantize(finite, format)
    assert_same(q, without, ["rowwise_scale_inv", "columnwise_scale_inv", "tensor_amax"])
    only, zeros = (nc.quantize(torch.full((32, 32), value), format) for value in (NAN, 0.0))
    assert_same(only, zeros, ["rowwise_scale_inv", "columnwise_scale_inv", "tensor_amax"])


@pytest.mark.parametrize(
    ("kind", "words", "options"),
    [
        (ValueError, "no format 'nvfp5'", {"format": "nvfp5"}),
        (TypeError, "torch.Tensor, not list", {"x": [1.0]}),
        (TypeError, "float64", {"x": torch.ones(32, 32, dtype=torch.float64)}),
        (TypeError, "int32", {"x": torch.ones(32, 32, dtype=torch.int32)}),
        (TypeError, "sparse", {"x": torch.ones(32, 32).to_sparse()}),
        (
            TypeError,
            r"quantized already \(nvfp4\)",
            {"x": nc.quantize(torch.ones(32, 32), "nvfp4")},
        ),
        (ValueError, "would make nothing", {"rowwise": False, "columnwise": False}),
        (ValueError, "'half'", {"source": "half"}),
        (ValueError, "'up'", {"rounding": "up"}),
        (ValueError, "seed is from 0 to 2.64 - 1, not -1", {"seed": -1}),
        (ValueError, "step .* not 18446744073709551616", {"step": 2**64}),
        (TypeError, "offset is an int, not float", {"offset": 1.0}),
    ],
)
def test_refused(kind, words, options):
    arguments = {"x": torch.ones(32, 32), "format": "nvfp4", **options}
    with pytest.raises(kind, match=words):
        nc.quantize(**arguments)


def test_threads_make_no_difference(format):
    x = torch.randn(1000, 1000)
    one = nc.quantize(x, format)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(4)
        assert_same(nc.quantize(x, format), one)
    finally:
        torch.set_num_threads(threads)


def test_flushing_of_subnormals_makes_no_difference(format):
    x = torch.randn(64, 64) * 1e-38
    q = nc.quantize(x, format)
    torch.set_flush_denormal(True)
    try:
        assert_same(nc.quantize(x, format), q)
        assert torch.equal(nc.quantize(x, format).dequantize(), q.dequantize())
    finally:
        torch.set_flush_denormal(False)
