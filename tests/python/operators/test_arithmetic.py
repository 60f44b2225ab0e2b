"""Arithmetic on a QuantizedTensor decodes; in place it is refused, but for nn.init's functions."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import narrowcast as nc
from models import assert_quantized


def make(format, grad=False):
    q = nc.quantize(torch.randn(64, 96, generator=torch.Generator().manual_seed(0)), format)
    return nn.Parameter(q) if grad else q


FUNCTIONS = {
    "add": lambda w: w + 1.0,
    "multiply": lambda w: w * torch.arange(96.0),
    "radd": lambda w: torch.ones(64, 96) - w,
    "norm": lambda w: w.norm(),
    "vector_norm": torch.linalg.vector_norm,
    "sum": lambda w: w.sum(0),
    "matmul": lambda w: w @ torch.ones(96, 5),
    "rmatmul": lambda w: torch.ones(5, 64) @ w,
    "mv": lambda w: torch.mv(w, torch.ones(96)),
    "addmm": lambda w: torch.addmm(torch.ones(64, 3), w, torch.ones(96, 3)),
    "einsum": lambda w: torch.einsum("ij,kj->ik", w, torch.ones(4, 96)),
    "where": lambda w: torch.where(w > 0, w, 0.0),
    "embedding": lambda w: F.embedding(torch.tensor([3, 3, 1]), w),
    "amax": torch.amax,
    "float": lambda w: w.float(),
    "softmax": lambda w: w.softmax(-1),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_decode(format, name):
    """The value and the gradient are those of the decoded tensor."""
    w, function = make(format, grad=True), FUNCTIONS[name]
    plain = w.dequantize().detach().requires_grad_()
    got, expected = function(w), function(plain)
    assert type(got) is torch.Tensor
    assert torch.equal(got, expected)
    (got * 2).sum().backward()
    (expected * 2).sum().backward()
    assert torch.equal(w.grad, plain.grad)


def test_comparisons(format):
    q = make(format)
    assert torch.equal(torch.isfinite(q), torch.ones(64, 96, dtype=torch.bool))
    assert torch.allclose(q, q.dequantize())
    assert torch.equal(q, q.clone())
    assert not torch.equal(q, q * 2)


def test_gradient_of_dequantize(format):
    w = make(format, grad=True)
    for usage in ("rowwise", "columnwise"):
        (gradient,) = torch.autograd.grad(w.dequantize(usage=usage).sum(), w)
        assert torch.equal(gradient, torch.ones(64, 96))
    (gradient,) = torch.autograd.grad(w.dequantize(torch.bfloat16).sum(), w)
    assert gradient.dtype == torch.float32


IN_PLACE = {
    "add_": lambda w: w.add_(1),
    "mul_": lambda w: w.mul_(2),
    "iadd": lambda w: w.__iadd__(1),
    "addcdiv_": lambda w: w.addcdiv_(torch.ones(64, 96), torch.ones(64, 96)),
    "lerp_": lambda w: w.lerp_(torch.ones(64, 96), 0.5),
    "clamp_": lambda w: w.clamp_(-1, 1),
    "erfinv_": lambda w: w.erfinv_(),
    "masked_fill_": lambda w: w.masked_fill_(torch.ones(64, 96, dtype=torch.bool), 0),
    "setitem": lambda w: w.__setitem__((0, 0), 1.0),
    "foreach": lambda w: torch._foreach_add_([w], 1),
    "foreach lerp": lambda w: torch._foreach_lerp_([w], [torch.ones(64, 96)], 0.5),
    "foreach mul": lambda w: torch._foreach_mul_([torch.ones(3), w], 2.0),
    "average": lambda w: torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)([w], [w], 1),
    "out": lambda w: torch.add(torch.ones(64, 96), 1, out=w),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place_is_refused(format, name):
    w = make(format, grad=True)
    before = w.dequantize().detach()
    refused = (NotImplementedError, ValueError) if name == "setitem" else NotImplementedError
    with torch.no_grad(), pytest.raises(refused, match=f"64x96 matrix in {format}"):
        IN_PLACE[name](w)
    assert torch.equal(w.dequantize(), before)


@pytest.mark.parametrize("trainable", [True, False])
def test_adding_to_a_weight(format, trainable):
    """As peft merges: the sum is the master, also of a weight that had none."""
    weight = nc.convert(nn.Linear(96, 64), format, trainable=trainable).weight
    value, step = weight.master if trainable else weight.dequantize(), torch.full((64, 96), 1e-4)
    expected = value.clone() + step
    weight.data += step
    assert torch.equal(weight.master, expected)
    assert_quantized(weight.detach(), expected)
    weight.data -= step
    assert torch.equal(weight.master, expected - step)
    with torch.no_grad():
        for refused in (1.0, torch.ones(96), torch.ones(1, 96)):
            with pytest.raises(NotImplementedError, match="in place"):
                weight += refused
        with pytest.raises(NotImplementedError, match=r"nc\.FusedAdam"):
            weight.add_(step, alpha=-1e-3)
    assert torch.equal(weight.master, expected - step)


def test_plain_optimizers_are_refused(format):
    w = make(format, grad=True)
    w.grad = torch.ones(64, 96)
    for optimizer in (torch.optim.AdamW([w]), torch.optim.SGD([w], lr=1.0)):
        with pytest.raises(NotImplementedError, match="in place"):
            optimizer.step()


def test_writing_to_a_plain_tensor(format):
    q, plain = make(format), torch.zeros(64, 96)
    plain.add_(q)
    assert torch.equal(plain, q.dequantize())
    torch._foreach_add_([plain], [q])
    assert torch.equal(plain, 2 * q.dequantize())
    torch._foreach_lerp_([plain], [q], 0.5)
    assert torch.equal(plain, torch.lerp(2 * q.dequantize(), q.dequantize(), 0.5))
    torch._foreach_copy_([plain], [q])
    assert torch.equal(plain, q.dequantize())


LISTS = {
    "add": lambda w: torch._foreach_add([w], [torch.ones(64, 96)]),
    "mul": lambda w: torch._foreach_mul([w], 2.0),
    "lerp": lambda w: torch._foreach_lerp([w], [torch.ones(64, 96)], 0.5),
    "norm": lambda w: torch._foreach_norm([w]),
}


@pytest.mark.parametrize("name", LISTS)
def test_lists_decode(format, name):
    """Out of place they make plain tensors."""
    q = make(format)
    (got,), (expected,) = LISTS[name](q), LISTS[name](q.dequantize())
    assert type(got) is torch.Tensor
    assert torch.equal(got, expected)


INITIALIZERS = {
    "normal_": lambda t: nn.init.normal_(t, std=0.02),
    "uniform_": lambda t: nn.init.uniform_(t, -1, 1),
    "trunc_normal_": lambda t: nn.init.trunc_normal_(t, std=0.02, a=-0.03, b=0.03),
    "kaiming_uniform_": lambda t: nn.init.kaiming_uniform_(t, a=5**0.5),
    "kaiming_normal_": nn.init.kaiming_normal_,
    "xavier_uniform_": nn.init.xavier_uniform_,
    "xavier_normal_": nn.init.xavier_normal_,
    "zeros_": nn.init.zeros_,
    "ones_": nn.init.ones_,
    "constant_": lambda t: nn.init.constant_(t, 0.3),
    "eye_": lambda t: nn.init.eye_(t),  # looked up when nc.convert has replaced it
    "orthogonal_": lambda t: nn.init.orthogonal_(t, gain=2**0.5),
    "sparse_": lambda t: nn.init.sparse_(t, sparsity=0.1),
}


@pytest.mark.parametrize("name", INITIALIZERS)
def test_initializers(format, name):
    """They act on the high-precision value, with the same random numbers as on a plain tensor."""
    layer = nc.convert(nn.Linear(96, 64, bias=False), format)
    plain = torch.empty(64, 96)
    for tensor in (layer.weight, plain):
        torch.manual_seed(3)
        assert INITIALIZERS[name](tensor) is tensor
    assert torch.equal(layer.weight.master, plain)
    assert_quantized(layer.weight.detach(), plain)
    with torch.no_grad(), pytest.raises(NotImplementedError, match="in place"):
        layer.weight.mul_(2)


@pytest.mark.parametrize("name", INITIALIZERS)
def test_filling_without_a_master(format, name):
    q, plain = make(format), torch.empty(64, 96)
    address = q.rowwise_data.data_ptr()
    for tensor in (q, plain):
        torch.manual_seed(3)
        INITIALIZERS[name](tensor)
    assert q.rowwise_data.data_ptr() == address
    assert_quantized(q, plain)


def test_initializer_of_convolutions(format):
    """dirac_, of a weight of three dimensions, with and without a master."""
    plain = nn.init.dirac_(torch.empty(8, 4, 32))
    q = nc.quantize(torch.randn(8, 4, 32), format)
    assert nn.init.dirac_(q) is q
    assert_quantized(q, plain)
    with pytest.raises(ValueError, match="3, 4, or 5 dimensions"):
        nn.init.dirac_(q.flatten(0, 1))


def test_reset_parameters(format):
    layer = nc.convert(nn.Linear(96, 64), format)
    before = layer.weight.dequantize()
    layer.reset_parameters()
    assert not torch.equal(layer.weight.dequantize(), before)
    assert_quantized(layer.weight.detach(), layer.weight.master)
