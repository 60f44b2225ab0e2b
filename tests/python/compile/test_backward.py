"""What the backward of a compiled block reads: the bytes of the backward's gather, and no copy of
the forward's.
"""

import copy

import pytest
import torch
from torch.distributed.fsdp import fully_shard

import narrowcast as nc
import ranks
from internals import exchange
from models import FEW, Layer, same
from scaled import KINDS

TESTED_FORMATS = FEW
CASES = [*((name, "dequantized") for name in FEW), *((name, "scaled") for name in KINDS)]

ROWS, COLUMNS, BATCH = 256, 64, 6
MODES = [None, "aot_eager", "inductor"]


def make(mesh, format, seed, backend=None, **options):
    """A sharded layer, and an equal one that is whole."""
    torch.manual_seed(seed)
    layer = Layer(COLUMNS, ROWS, bias=False)
    layer = nc.convert(layer, format, **options).to(mesh.device_type)
    whole = copy.deepcopy(layer)
    if backend:
        torch._dynamo.reset()
        layer.compile(backend=backend, fullgraph=True)
    fully_shard(layer, mesh=mesh, reshard_after_forward=True)
    return layer, whole


def inputs(mesh):
    generator = torch.Generator().manual_seed(9)
    x, gradient = (torch.randn(BATCH, n, generator=generator) for n in (COLUMNS, ROWS))
    return x.to(mesh.device_type).requires_grad_(), gradient.to(mesh.device_type)


@pytest.mark.parametrize("backend", MODES)
@pytest.mark.parametrize(("name", "matmul"), CASES)
@ranks.on(2)
def test_the_backward_reads_its_own_gather(mesh, name, matmul, backend):
    """Shards whose bytes change after the forward: exactly the backward sees it."""
    layer, whole = make(mesh, name, 0, backend, matmul=matmul)
    other, expected = make(mesh, name, 1, matmul=matmul)
    x, gradient = inputs(mesh)
    with torch.no_grad():
        other(x)  # whose bytes its first gather makes
    for step in range(3):
        x.grad = None
        output = layer(x)
        assert same(output, (whole if step == 0 else expected)(x)), step
        exchange(layer, other, ("rowwise", "columnwise"))
        torch.manual_seed(step)  # of gradients that are rounded stochastically
        output.backward(gradient)
        torch.manual_seed(step)
        assert same(x.grad, torch.autograd.grad(expected(x), x, gradient)[0]), step
    if matmul == "dequantized":
        own = layer.weight.grad.full_tensor()
        torch.testing.assert_close(own, 3 * (gradient.t() @ x.detach()))


@pytest.mark.parametrize("backend", MODES)
@ranks.on(2)
def test_no_decoded_weight_is_saved(mesh, format, backend):
    """A forward saves bytes for its backward, and nothing of a decoded weight's size."""
    layer, _ = make(mesh, format, 0, backend)
    x, gradient = inputs(mesh)
    layer(x).backward(gradient)
    found = []

    def pack(tensor):
        found.append((tensor.dtype, tensor.numel(), type(tensor).__name__))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = layer(x)
    output.backward(gradient)
    assert found
    for dtype, elements, kind in found:
        if dtype.is_floating_point and kind != "QuantizedTensor":
            assert elements < ROWS * COLUMNS // 2, found


def other_usage(mesh, format, backend):
    """Asking in a forward for the columnwise value: right, or an error."""
    layer, _ = make(mesh, format, 0)
    layer.forward = lambda x: x @ layer.weight.dequantize(usage="columnwise").t()
    if backend:
        torch._dynamo.reset()
        layer.compile(backend=backend)
    x, gradient = inputs(mesh)
    for _ in range(2):  # at the second one, bytes of an earlier backward lie where columnwise would
        with torch.no_grad():
            layer.weight.mul_(2)
            whole = nc.quantize(layer.weight.full_tensor(), format)
        output = layer(x)
        assert same(output, x @ whole.dequantize(usage="columnwise").t())
        output.backward(gradient)


@pytest.mark.parametrize("backend", [None, "aot_eager"])
def test_the_other_usage(format, device, backend):
    answers = ranks.errors(2, device, other_usage, format, backend)
    if nc.format(format).columnwise_derived:
        assert answers == [None, None]
    else:
        for kind, message in answers:
            assert kind == "ValueError", answers
            assert "recompute=True" in message
