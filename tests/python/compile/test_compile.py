"""torch.compile: a model with quantized weights is one graph, and does what it does uncompiled,
with inputs of any shape and weights of more dimensions than two.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses import FakeTensorMode

import narrowcast as nc
from models import BUFFERS, FEW, assert_same, same
from narrowcast.tensor import graphs
from weights import quantized

TESTED_FORMATS = FEW


@pytest.fixture(autouse=True)
def forget():
    torch._dynamo.reset()


def build(format):
    torch.manual_seed(0)
    return nc.convert(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32)), format)


def assert_same_parameters(model, other):
    for one, another in zip(model.parameters(), other.parameters(), strict=True):
        if isinstance(one, nc.MasterWeight):
            assert_same(quantized(one), quantized(another), BUFFERS)
        assert same(one, another)


def train(model, run, steps=3):
    """Losses of some steps, gradients that accumulate over two batches, and a load between."""
    optimizer = nc.FusedAdam(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(1)
    losses = []
    for step in range(steps):
        for _ in range(2):
            loss = run(torch.randn(8, 64, generator=generator)).square().mean()
            loss.backward()
            losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
        if step == 0:
            with torch.no_grad():
                model[0].weight[:].copy_(torch.randn(128, 64, generator=generator))
    return losses


def test_training(format):
    """Forward, backward and FusedAdam, in one graph that is compiled once."""
    eager, compiled = build(format), build(format)
    torch._dynamo.utils.counters.clear()
    run = torch.compile(compiled, backend="aot_eager", fullgraph=True)
    assert train(compiled, run) == train(eager, eager)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert_same_parameters(compiled, eager)


@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace")
def test_a_whole_step():
    """Forward, backward and the optimizer's step in one compiled function, in several graphs."""

    def step(model, optimizer, x):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    models = [build("nvfp4") for _ in range(2)]
    for model, run in zip(models, (step, torch.compile(step, backend="aot_eager")), strict=True):
        optimizer = nc.FusedAdam(model.parameters(), lr=1e-2)
        generator = torch.Generator().manual_seed(1)
        for _ in range(3):
            run(model, optimizer, torch.randn(8, 64, generator=generator))
    assert_same_parameters(*models)


def test_inductor(format):
    """The default backend, where a C++ compiler is."""
    eager, compiled = build(format), build(format)
    run = torch.compile(compiled, fullgraph=True)
    x = torch.randn(8, 64)
    for _ in range(2):
        got, expected = run(x), eager(x)
        assert torch.equal(got, expected)
        got.sum().backward()
        expected.sum().backward()
        for one, another in zip(compiled.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(one.grad, another.grad)
            one.grad = another.grad = None


def trained(value, format):
    """A weight in training of a value."""
    layer = nn.Linear(1, 1, bias=False)
    layer.weight = nn.Parameter(value.clone())
    return nc.convert(layer, format).weight


KINDS = [nc.quantize, trained]


def test_caches_know_what_a_graph_rests_on(format):
    """Equal for two weights with other bytes; another for each fact that a graph may hold."""
    values = torch.randn(2, 128, 128)
    found = set()
    for make in KINDS:
        one, other = (make(value, format) for value in values)
        known = one._stable_hash_for_caching()
        assert other._stable_hash_for_caching() == known
        others = [
            make(values[0], next(name for name in nc.formats() if name != format)),
            make(values[0].bfloat16(), format),
            make(values[0].repeat(2, 1), format),
            nn.Parameter(one, not one.requires_grad),
        ]
        found |= {known, *(tensor._stable_hash_for_caching() for tensor in others)}
    assert len(found) == 10


@pytest.mark.parametrize("make", KINDS)
def test_caches_know_the_code(monkeypatch, make):
    """What narrowcast's code makes of a graph, and what a format was when it was made: both may be
    others in the next process, under the same name.
    """
    weight = make(torch.randn(64, 64), "fp8_e4m3")
    keys = [weight._stable_hash_for_caching()]
    fake = FakeTensorMode().from_tensor(weight)
    pickled = [fake.__reduce_ex__(2)[1][-1]]
    others = {"_code": lambda: "another", "_code_and_formats": lambda format: ("another",)}
    for name, value in others.items():
        monkeypatch.setattr(graphs, name, value)
        keys.append(weight._stable_hash_for_caching())
        pickled.append(fake.__reduce_ex__(2)[1][-1])
    assert len(set(keys)) == len(set(pickled)) == 3
    monkeypatch.undo()
    partner = nc.format("fp8_e5m2")  # of gradients
    monkeypatch.setitem(partner.__dict__, "identity", "fp8_e5m2 (others)")
    assert weight._stable_hash_for_caching() not in keys


def test_caches_know_weights_whose_gathers_differ_by_pass(format):
    """By what torch 2.11 pickles of a graph's inputs."""
    weight = nc.quantize(torch.randn(128, 128), format)
    _, (*facts, _) = weight.__tensor_flatten__()
    keys = []
    with FakeTensorMode() as mode:
        inner = {"graph_key": mode.from_tensor(weight.graph_key)}
        for by_pass in (False, True):
            fake = nc.QuantizedTensor.__tensor_unflatten__(
                inner, (*facts, by_pass), weight.shape, weight.stride()
            )
            _, (*_, key) = fake.__reduce_ex__(2)
            keys.append(key)
    assert keys[0] != keys[1]


FUNCTIONS = {
    "linear": F.linear,
    "bfloat16": lambda x, w: F.linear(x.bfloat16(), w),
    "matmul": lambda x, w: w @ x.t(),
    "dequantize": lambda x, w: x @ w.dequantize().t(),
    "float": lambda x, w: x @ w.float().t(),
    "norm": lambda x, w: x * w.norm(),
    "embedding": lambda x, w: F.embedding(torch.tensor([1, 2]), w) * x[:2],
    "slice": lambda x, w: F.linear(x[:, :32], w[32:, :32]),
    "split": lambda x, w: [F.linear(x, part) for part in w.split(64)][1],
    "view": lambda x, w: F.linear(x, w.view(2, 64, 64).flatten(0, 1)),
    "facts": lambda x, w: x * w.shape[0] + w.dim(),
}


def assert_compiled_as_eager(function, make, format):
    """Values and gradients."""
    results = []
    for run in (function, torch.compile(function, backend="aot_eager")):
        x = torch.randn(8, 64, generator=torch.Generator().manual_seed(2), requires_grad=True)
        w = torch.randn(128, 64, generator=torch.Generator().manual_seed(3))
        w = nn.Parameter(make(w, format))
        value = run(x, w)
        value.float().sum().backward()
        results.append((value.detach(), x.grad, w.grad))
    for got, expected in zip(*results, strict=True):
        assert same(got, expected)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(format, name):
    assert_compiled_as_eager(FUNCTIONS[name], nc.quantize, format)


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name != "dequantize"])
def test_functions_of_weights_in_training(name):
    assert_compiled_as_eager(FUNCTIONS[name], trained, "nvfp4_1d")


def test_a_copy_of_a_key_is_none(format):
    """Hooks of saved tensors and CUDA graphs make such copies."""
    key, ops = nc.quantize(torch.randn(128, 128), format).graph_key.clone(), torch.ops.narrowcast
    for call in (
        lambda: ops.part(key, [0, 1, 0, 1], False),
        lambda: ops.copy(key, key.device),
        lambda: ops.dequantize(key, [1, 1], format, 0, torch.float32, []),
    ):
        with pytest.raises(TypeError, match="has got a copy of that"):
            call()


def test_transposed_weight():
    w = nn.Parameter(nc.quantize(torch.randn(64, 32), "nvfp4"))
    x = torch.randn(4, 64)

    def function(x, w):
        return F.linear(x, w.t())

    assert torch.equal(torch.compile(function, backend="aot_eager")(x, w), function(x, w))


@pytest.mark.parametrize("write", ["copy_", "add_", "fill_"])
def test_writes_break_the_graph(write):
    """Whether bytes are stale no graph knows: a write runs outside, or is an error that says so."""
    torch.manual_seed(0)
    layers = [nc.convert(nn.Linear(64, 64, bias=False), "mxfp8_e4m3") for _ in range(2)]
    layers[1].load_state_dict(layers[0].state_dict())
    value = 0.3 if write == "fill_" else torch.ones(64, 64)

    def run(layer, x):
        with torch.no_grad():
            getattr(layer.weight, write)(value)
        return layer(x)

    x = torch.randn(4, 64)
    compiled = torch.compile(run, backend="aot_eager")
    for _ in range(2):
        assert same(compiled(layers[0], x), run(layers[1], x))
    torch._dynamo.reset()
    with pytest.raises(Exception, match="a compiled function cannot write to it"):
        torch.compile(run, backend="aot_eager", fullgraph=True)(layers[0], x)


def test_sequences_of_any_length(format):
    """Inputs of three dimensions, of which torch makes two dynamic once they have changed."""
    torch.manual_seed(0)
    layers = [nn.Linear(64, 64, bias=bias) for bias in (False, True)]
    model = nc.convert(nn.Sequential(*layers), format)
    run = torch.compile(model, backend="aot_eager", fullgraph=True)
    for batch, length in ((2, 16), (2, 24), (3, 8), (5, 7)):
        grads = []
        x = torch.randn(batch, length, 64)
        for function in (model, run):
            out = function(x.requires_grad_())
            grads.append([out, *torch.autograd.grad(out.sum(), (x, model[0].weight))])
        for one, other in zip(*grads, strict=True):
            torch.testing.assert_close(one, other)


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 64, 64))

    def forward(self, x):
        return torch.bmm(x, self.w) + F.linear(x[0], self.w[1])


@pytest.mark.parametrize("dynamic", [None, True])
def test_experts(format, dynamic):
    """A stack of matrices with a master, not gathered by FSDP2."""
    torch.manual_seed(0)
    model, x = nc.convert(Experts(), format), torch.randn(4, 6, 64)
    run = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    for function in (run, torch.no_grad()(run)):
        torch.testing.assert_close(function(x), model(x))
    got, expected = (torch.autograd.grad(f(x).sum(), model.w)[0] for f in (run, model))
    torch.testing.assert_close(got, expected)
