"""Scaled products where something stands between the input and the cast, or between the product and
its reader: writes that torch does not count, autocast, selective checkpointing, dynamic shapes.
"""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

import narrowcast as nc
from internals import kept_input_bytes
from models import same
from narrowcast.matmul import operators
from narrowcast.registry import BUFFERS
from scaled import SCALED
from weights import quantized

ROWS, IN, OUT = 8, 96, 64


def layer_of(name, device="cpu", dtype=torch.float32, **options):
    torch.manual_seed(0)
    layer = nn.Linear(IN, OUT, dtype=dtype, **options).to(device)
    return nc.convert(layer, name, matmul="scaled")


def inputs(device="cpu", count=1):
    generator = torch.Generator().manual_seed(1)
    every = [torch.randn(ROWS, IN, generator=generator).to(device) for _ in range(count)]
    return every if count > 1 else every[0]


# ---- writes to an input that torch does not count ----


def assign_data(x, y):
    x.data = y.clone()


WRITES = {
    "data": lambda x, y: x.data.copy_(y),
    "another memory": assign_data,
    "storage": lambda x, y: x.untyped_storage().copy_(y.clone().untyped_storage()),
    "numpy": lambda x, y: x.numpy().__setitem__(slice(None), y.numpy()),
}


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("name", SCALED)
def test_an_input_that_was_written_to(name, write, gradients, device):
    """As a pipeline's stage receives into one buffer, in training too, if no backward comes."""
    if write == "numpy" and device == "cuda":
        pytest.skip("numpy has memory of the CPU")
    layer = layer_of(name, device)
    x, y = inputs(device, 2)
    with torch.set_grad_enabled(gradients):
        layer(x)
        WRITES[write](x, y)
        assert same(layer(x).detach(), layer(y.clone()).detach())
    assert gradients or kept_input_bytes() == 0


PARTS = {
    "slices": lambda w, x: [F.linear(x, w[:OUT]), F.linear(x, w[OUT:])],
    "chunks": lambda w, x: [F.linear(x, part) for part in w.chunk(2)],
    "experts": lambda w, x: [F.linear(x, w.view(2, OUT, IN)[one]) for one in range(2)],
    "detached": lambda w, x: [F.linear(x, w.detach())],
}


@pytest.mark.parametrize("part", PARTS)
def test_parts_of_a_weight_that_ask_again(part, device):
    """Each is another tensor at each call, and the same part all the same."""
    layer = nc.convert(nn.Linear(IN, 2 * OUT).to(device), "mxfp8_e4m3", matmul="scaled")
    x, y = inputs(device, 2)
    x.requires_grad_()
    kept = PARTS[part](layer.weight, x)  # with what their backwards need
    x.data.copy_(y)
    found, expected = (PARTS[part](layer.weight, one) for one in (x, y.clone().requires_grad_()))
    assert all(map(same, [one.detach() for one in found], [one.detach() for one in expected]))
    assert kept


def test_layers_of_one_input_share_its_cast(device):
    """Where a backward is to come, which ends it."""
    layers = [layer_of("mxfp8_e4m3", device) for _ in range(2)]
    x = inputs(device)
    outputs = [layers[0](x)]
    kept = kept_input_bytes()
    outputs.append(layers[1](x))
    assert kept_input_bytes() == kept > 0
    assert same(*(one.detach() for one in outputs))
    sum(outputs).sum().backward()
    assert kept_input_bytes() == 0


# ---- autocast ----


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", SCALED)
def test_autocast_rounds_no_operand(name, dtype, device):
    """Values and gradients are those of an input of the dtype, with the backward within it too."""
    x = inputs(device).to(dtype)
    found = []
    for inside in (False, True):
        layer = layer_of(name, device, bias=False)
        leaf = x.clone().requires_grad_()
        torch.manual_seed(3)  # of gradients that are rounded stochastically
        with torch.autocast(device, dtype=dtype, enabled=inside):
            output = layer(leaf)
            assert output.dtype == dtype
            output.float().square().sum().backward()
        found.append([output.detach(), leaf.grad, layer.weight.grad])
    assert all(same(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize("name", SCALED)
def test_autocast_of_large_inputs(name, device):
    """float16's largest number, which casts may round up."""
    layer = layer_of(name, device, bias=False)
    with torch.no_grad(), torch.autocast(device, dtype=torch.float16):
        nn.init.constant_(layer.weight, 2.0**-8)
        x = torch.zeros(ROWS, IN, device=device)
        x[:, 0] = 65504.0
        assert layer(x).isfinite().all()


@pytest.mark.parametrize("matmul", ["dequantized", "scaled"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float64, torch.complex64])
def test_autocast_converts_what_torchs_does(dtype, matmul, device):
    layer = nc.convert(nn.Linear(IN, OUT).to(device), "mxfp8_e4m3", matmul=matmul)
    x = torch.ones(ROWS, IN, device=device).to(dtype)
    with torch.autocast(device, dtype=torch.bfloat16), pytest.raises(RuntimeError):
        layer(x)


# ---- who keeps products ----


@pytest.mark.parametrize("name", SCALED)
def test_selective_checkpointing_of_products(name, device):
    kept, seen = torch.ops.narrowcast.scaled_forward.default, set()

    def policy(context, operator, *args, **kwargs):
        seen.add(operator)
        keeps = operator is kept
        return CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE

    contexts = partial(create_selective_checkpoint_contexts, policy)

    def run(call):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(IN, OUT), nn.GELU(), nn.Linear(OUT, IN)).to(device)
        nc.convert(model, name, matmul="scaled")
        nn.init.constant_(model[0].bias, 3.0)
        x = inputs(device).requires_grad_()
        torch.manual_seed(2)
        output = call(model, x)
        before = output.detach().clone()
        output.square().sum().backward()
        assert same(output.detach(), before)
        return [before, x.grad, *(one.grad for one in model.parameters())]

    plain = run(lambda model, x: checkpoint(model, x, use_reentrant=False))
    selective = run(lambda model, x: checkpoint(model, x, use_reentrant=False, context_fn=contexts))
    assert all(same(one, other) for one, other in zip(plain, selective, strict=True))
    assert kept in seen


def test_a_graphs_product_finds_its_weight(device):
    layer, x = layer_of("mxfp8_e4m3").to(device), inputs(device)
    with torch.no_grad():
        expected = layer(x) - layer.bias
    weight = layer.weight._store.bytes  # alive, as a key is found by it alone
    input = torch.ops.narrowcast.cast(x, nc.format("mxfp8_e4m3").matmul.input, True, False)
    run = partial(torch.ops.narrowcast.scaled_forward, input)
    rest = [weight.rows, weight.columns], "mxfp8_e4m3", x.dtype
    key = layer.weight._view.graph_key
    torch.testing.assert_close(run(key, *rest), expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(TypeError, match="has got a copy of that"):
        run(key.clone(), *rest)
    with pytest.raises(TypeError, match="in nvfp4, and has got one in mxfp8_e4m3"):
        run(key, rest[0], "nvfp4", x.dtype)


@pytest.mark.parametrize("matmul", ["dequantized", "scaled"])
@pytest.mark.parametrize("shape", [(OUT,), (1, OUT), (ROWS, OUT), (1,), ()])
def test_a_bias_of_any_shape_that_fits(shape, matmul, device):
    layer = nc.convert(nn.Linear(IN, OUT, bias=False).to(device), "mxfp8_e4m3", matmul=matmul)
    bias = torch.zeros(shape, device=device, requires_grad=True)
    F.linear(inputs(device), layer.weight, bias).sum().backward()
    assert bias.grad.shape == bias.shape
    assert bias.grad.sum() == ROWS * OUT


# ---- dynamic shapes ----


@pytest.mark.parametrize("name", ["nvfp4", "int8_block32"])  # two scales, and padded rows
def test_one_graph_for_batches_of_any_size(name):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    layer = layer_of(name)
    compiled = torch.compile(layer, backend="aot_eager", dynamic=True, fullgraph=True)
    with torch.no_grad():
        for rows in range(8, 72, 8):
            x = torch.randn(rows, IN)
            assert same(compiled(x), layer(x))
    # Another where rows fill whole blocks of 32.
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 1 + (name == "int8_block32")


@pytest.mark.parametrize("name", ["nvfp4", "int8_block32"])
@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
def test_rows_that_no_trace_knows(name):
    """As many as a mask of the input leaves, known when the graph runs, forward and backward."""
    torch._dynamo.reset()
    layer = layer_of(name)
    compiled = torch.compile(lambda x, mask: layer(x[mask]), backend="aot_eager", fullgraph=True)
    for rows in (3, 5, 8):
        x, mask = torch.randn(10, IN, requires_grad=True), torch.arange(10) < rows
        expected = layer(x[mask])
        got = compiled(x, mask)
        assert same(got, expected)
        got.sum().backward()
        assert x.grad[:rows].any(dim=1).all()
        assert not x.grad[rows:].any()


@pytest.mark.parametrize("name", ["nvfp4", "int8_block32"])
def test_export_of_any_number_of_rows(name):
    layer = layer_of(name).requires_grad_(False)
    rows = torch.export.Dim("rows")
    exported = torch.export.export(layer, (torch.randn(6, IN),), dynamic_shapes=({0: rows},))
    for count in (2, 7, 33):
        x = torch.randn(count, IN)
        assert same(exported.module()(x), layer(x))


@pytest.mark.parametrize("name", SCALED)
def test_torchscript(name):
    """As docs/matmul.md says: a scripted layer decodes, a traced one is scaled."""
    layer, x = layer_of(name).requires_grad_(False), inputs()
    decoded = F.linear(x, quantized(layer.weight).dequantize(), layer.bias)
    torch.testing.assert_close(torch.jit.script(layer)(x), decoded)
    assert not same(layer(x), decoded)
    assert same(torch.jit.trace(layer, x)(x), layer(x))


class Size:
    """A size that is no int, as those of traces."""

    def __init__(self, value):
        self.value = value

    def __neg__(self):
        return Size(-self.value)

    def __mul__(self, other):
        return Size(self.value * other)

    def __floordiv__(self, other):
        return Size(self.value // other)


def test_shapes_of_sizes_that_are_not_known(format):
    facts = nc.format(format)
    for rows, columns in [(1, 32), (36, 52), (128, 128), (300, 520), (4096, 4)]:
        for buffer in BUFFERS:
            found = operators.buffer_shape(facts, buffer, Size(rows), Size(columns))
            sizes = tuple(getattr(one, "value", one) for one in found)
            assert sizes == tuple(facts.buffer_shape(buffer, rows, columns)), (rows, columns)
