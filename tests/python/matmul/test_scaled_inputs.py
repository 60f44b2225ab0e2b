"""What layers with scaled products keep of their input: its cast, one for all layers and threads
that see it. And inputs and gradients whose memory is not their values.
"""

import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor

import narrowcast as nc
import scaled
from gradients import WithGradient, saved_by
from internals import kept_input_bytes
from models import same
from weights import quantized

TESTED_FORMATS = scaled.SCALED


def test_the_input_is_saved_as_bytes(format):
    layer, x = scaled.layer(format), torch.randn(8, 96)
    saved = saved_by(lambda: layer(x))
    elements = nc.format(nc.format(format).matmul.input).rowwise.element_bits / 8
    assert saved[0].dtype == torch.uint8
    assert sum(tensor.nbytes for tensor in saved if tensor.dtype == torch.uint8) < 4 * 8 * 96
    assert saved[0].nbytes == 8 * 96 * elements


def is_bytes(tensor) -> bool:
    return tensor.dtype == torch.uint8


def test_one_cast_for_layers_of_one_input(format):
    """Layers that see the same input share its bytes; an input that was written to is cast anew."""
    layers, x = [scaled.layer(format) for _ in range(3)], torch.randn(8, 96)
    bytes = [one for one in saved_by(lambda: [layer(x) for layer in layers]) if is_bytes(one)]
    assert len({one.data_ptr() for one in bytes}) == len(bytes) / len(layers)
    before = layers[0](x)
    x.mul_(2)
    after = layers[0](x)
    expected = scaled.forward(x, layers[0].weight)
    assert scaled.row_error(after - layers[0].bias, expected) <= scaled.ACCUMULATION
    assert not same(before, after)


def test_one_cast_under_autocast(format):
    """Each layer converts the input for itself, and all share the cast of what it becomes."""
    layers, x = [scaled.layer(format) for _ in range(3)], torch.randn(8, 96)

    def codes(run):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            saved = saved_by(run)
        return [*filter(is_bytes, saved)]

    shared = codes(lambda: [layer(x) for layer in layers])
    assert len({one.data_ptr() for one in shared}) == len(shared) / len(layers)
    x.mul_(-1)
    negated = codes(lambda: layers[0](x))
    assert not all(map(same, shared, negated))
    kept = [one.clone() for one in negated]
    unconverted = [*filter(is_bytes, saved_by(lambda: layers[1](x)))]
    assert all(map(same, kept, negated)) and unconverted[0].data_ptr() != negated[0].data_ptr()


@pytest.mark.parametrize("part", [slice(None), slice(4)], ids=["whole", "a view"])
def test_a_parameter_that_was_stepped(format, device, part):
    """Torch counts no writes of its fused optimizers."""
    one, other = scaled.layer(format, device), scaled.layer(format, device)
    parameter = nn.Parameter(torch.randn(8, 96, device=device))
    parameter.grad = torch.ones_like(parameter)
    x = parameter if part == slice(None) else parameter[part]
    one(x)
    torch.optim.AdamW([parameter], lr=1.0, fused=True).step()
    assert same(other(x), other(x.detach().clone()))


def test_a_cast_is_forgotten(format):
    """Nothing is kept of an input after its backward."""

    layer, x = scaled.layer(format), torch.randn(8, 96)
    out = layer(x)
    assert kept_input_bytes() > 0
    out.sum().backward()
    assert kept_input_bytes() == 0


def test_threads(format):
    """Casts of shared inputs in several threads: none waits for ever, none sees another's bytes."""
    layer, x = scaled.layer(format), torch.randn(8, 96)
    expected, wrong = layer(x), []

    def work(inference):
        for _ in range(20):
            with torch.inference_mode(inference):
                if not same(layer(x), expected):
                    wrong.append(inference)

    threads = [threading.Thread(target=work, args=(i % 2 == 0,), daemon=True) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert not any(thread.is_alive() for thread in threads)
    assert not wrong


# ---- values that are not in a tensor's memory as they are ----

PUT_OFF = {
    "a collective": AsyncCollectiveTensor,
    "a sign": lambda x: torch._neg_view(-x),
}


def run(layer, x, gradient, of_input, of_gradient):
    """The output and the gradients of a layer; functions say how input and gradient come."""
    torch.manual_seed(0)  # of gradients that are rounded stochastically
    layer.zero_grad()
    x = x.clone().requires_grad_()
    out = layer(of_input(x))
    WithGradient.apply(out, of_gradient).backward(gradient)
    return out.detach(), x.grad, layer.weight.grad, layer.bias.grad


@pytest.mark.parametrize("put_off", PUT_OFF)
@pytest.mark.filterwarnings("ignore:.*wait_tensor")
def test_what_torch_has_put_off(put_off, format):
    layer, later = scaled.layer(format), PUT_OFF[put_off]
    torch.manual_seed(1)
    x, gradient = torch.randn(2, 8, 96).relu(), torch.randn(2, 8, 64)

    def as_it_is(value):
        return value

    expected = run(layer, x, gradient, as_it_is, as_it_is)
    of_input = as_it_is if put_off == "a collective" else later  # that has no derivative
    for got in (
        run(layer, x, gradient, of_input, as_it_is),
        run(layer, x, gradient, as_it_is, later),
    ):
        assert all(map(same, got, expected))
    for without in (torch.no_grad(), torch.inference_mode()):
        with without:
            assert same(layer(later(x)), expected[0])


def test_nested_inputs(format):
    """The weight is decoded, with the strided layout as with the jagged one."""
    layer, x = scaled.layer(format), torch.randn(8, 96)
    outputs = []
    for layout in (torch.strided, torch.jagged):
        layer.zero_grad()
        nested = torch.nested.nested_tensor([x[:3], x[3:]], layout=layout)
        out = torch.nested.to_padded_tensor(layer(nested), 0.0)
        out.sum().backward()
        outputs.append((out, layer.weight.grad))
    expected = F.linear(x, quantized(layer.weight).dequantize(torch.float32), layer.bias)
    for out, gradient in outputs:
        assert same(torch.cat([out[0, :3], out[1]]), expected)
        torch.testing.assert_close(gradient, x.sum(0).expand(64, -1))


def freed(tensor):
    """The same without its memory, and not contiguous."""
    other = tensor.clone().t().contiguous().t()
    other.untyped_storage().resize_(0)
    return other


def test_freed_memory(format):
    layer, x = scaled.layer(format), torch.randn(8, 96)
    with pytest.raises(ValueError, match="input or gradient has been freed"):
        layer(freed(x))
    with pytest.raises(ValueError, match="input or gradient has been freed"), torch.no_grad():
        layer(freed(x))
    out = WithGradient.apply(layer(x), freed)
    with pytest.raises(RuntimeError, match="input or gradient has been freed"):
        out.backward(torch.ones_like(out))


def test_a_sparse_input(format):
    with pytest.raises(TypeError, match="of type Tensor on cpu has none"):
        scaled.layer(format)(torch.ones(8, 96).to_sparse())


def test_an_input_without_memory(format):
    with pytest.raises(TypeError, match=r"64x96 matrix in .*one of type Tensor on meta has none"):
        scaled.layer(format)(torch.empty(8, 96, device="meta"))
