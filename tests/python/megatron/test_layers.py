"""narrowcast.megatron: products of Megatron's parallel layers with weights in formats, bit for bit
those of Megatron's own layers with the decoded values.
"""

import contextlib

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

import narrowcast as nc
import ranks
import scaled
from gradients import saved_by
from internals import config_of
from models import one_of_each, same

pytest.importorskip("megatron.core", reason="megatron-core is not installed")

import megatron_models as mm
from narrowcast import megatron

FORMATS = one_of_each(lambda f: (f.columnwise_derived, f.tensor_amax))
SCALED = {}  # the first format for each way of casting
for _name in scaled.SCALED:
    _products = nc.format(_name).matmul
    _input = nc.format(_products.input)
    SCALED.setdefault((_input.tensor_amax, _input.group, _products.stochastic_gradient), _name)
WORLDS = [1, 2]
IN, OUT = 64, 128


def layer_of(kind, format, matmul="dequantized", **options):
    """A layer with a bias of its own, and one of Megatron's with the values of its weight."""
    provider = megatron.SpecProvider(format=format, matmul=matmul)
    ours = getattr(provider, f"{kind}_parallel_linear")()
    assert issubclass(ours, mm.MEGATRONS[kind])
    arguments = {"init_method": torch.nn.init.normal_, "bias": True, "skip_bias_add": False}
    arguments |= {"gather_output": False} if kind == "column" else {"input_is_parallel": True}
    made = []
    for one in (ours, mm.MEGATRONS[kind]):
        torch.manual_seed(0)
        made.append(one(IN, OUT, config=mm.config(**options), **arguments))
        torch.nn.init.ones_(made[-1].bias)
    made[0].finish_init(None)
    made = [one.to(options.get("dtype", torch.float32)) for one in made]
    mm.use_values(made[1], made[0].weight.detach())
    return made


def input_of(layer, dtype=torch.float32, sequence=3, batch=1):
    """An input of this rank, the same on all ranks where the layer takes it so."""
    column = isinstance(layer, mm.MEGATRONS["column"])
    alike = column and not layer.config.sequence_parallel
    generator = torch.Generator().manual_seed(0 if alike else 1 + dist.get_rank())
    width = IN if column else layer.input_size_per_partition
    shape = sequence, batch, width
    return torch.randn(shape, generator=generator).to(dtype).requires_grad_()


def run(layer, x, autocast=False):
    """The output, and the gradients of input, weight and bias; None where there is none."""
    x = x.detach().requires_grad_(x.requires_grad)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        out, _ = layer(x)
    generator = torch.Generator().manual_seed(7)
    gradient = torch.randn(out.shape, generator=generator).to(out.dtype)
    layer.zero_grad()
    torch.manual_seed(7)
    out.backward(gradient)
    return out.detach(), x.grad, layer.weight.grad, layer.bias.grad


def assert_all_same(got, expected):
    names = ("output", "gradient of the input", "of the weight", "of the bias")
    for name, one, other in zip(names, got, expected, strict=False):
        assert same(one, other), f"{name}: {one} is not {other}"


def compare_with_megatron(mesh, kind, format, dtype, options):
    dtype = getattr(torch, dtype)
    patched = mm.memory_on_the_cpu() if options else contextlib.nullcontext()
    with mm.parallel(), patched:
        layer, plain = layer_of(kind, format, dtype=dtype, **options)
        assert layer.sequence_parallel == bool(options)
        x = input_of(layer, dtype, sequence=4)
        got = run(layer, x)
        assert got[0].dtype == got[1].dtype == got[2].dtype == dtype
        assert_all_same(got, run(plain, x))
        assert_all_same(run(layer, x.detach()), run(plain, x.detach()))
        layer.weight.requires_grad_(False)
        plain.weight.requires_grad_(False)
        frozen = run(layer, x)
        assert frozen[2] is None
        assert_all_same(frozen[:3], run(plain, x)[:3])
        # Megatron's column layer forgets its bias where its weight is frozen.
        assert same(frozen[3], got[3])
        with torch.no_grad():
            assert same(layer(x)[0], plain(x)[0])


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("kind", ["column", "row"])
@pytest.mark.parametrize("name", FORMATS)
def test_products_are_megatrons(world, kind, name):
    ranks.run(world, "cpu", compare_with_megatron, kind, name, "float32", {})


@pytest.mark.parametrize("kind", ["column", "row"])
@pytest.mark.parametrize("options", [{}, {"sequence_parallel": True}], ids=["", "sequence"])
def test_products_in_bfloat16(kind, options):
    ranks.run(2, "cpu", compare_with_megatron, kind, FORMATS[0], "bfloat16", options)


@pytest.mark.parametrize("kind", ["column", "row"])
@pytest.mark.parametrize("name", FORMATS)
def test_sequence_parallel(kind, name):
    options = {"sequence_parallel": True}
    ranks.run(2, "cpu", compare_with_megatron, kind, name, "float32", options)


def compare_with_linear(mesh, format, matmul, sequence_parallel, autocast):
    """With F.linear of the whole input, and the reductions by hand."""
    with mm.parallel():
        layer, _ = layer_of("column", format, matmul, sequence_parallel=sequence_parallel)
        x = input_of(layer)
        out, of_input, of_weight, of_bias = run(layer, x, autocast)
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.detach())
        whole = torch.cat(parts) if sequence_parallel else x.detach()
        whole.requires_grad_()
        weight, bias = layer.weight, layer.bias.detach().requires_grad_()
        layer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            expected = F.linear(whole, weight)
            expected = expected + bias.to(expected.dtype)
        generator = torch.Generator().manual_seed(7)
        gradient = torch.randn(expected.shape, generator=generator).to(expected.dtype)
        torch.manual_seed(7)
        expected.backward(gradient)
        total = whole.grad
        if autocast:  # what is reduced is in the dtype of the product
            total = total.bfloat16()
        dist.all_reduce(total)
        if sequence_parallel:
            total = total.chunk(dist.get_world_size())[dist.get_rank()]
        expected = expected.detach(), total.to(x.dtype), weight.grad, bias.grad
        assert_all_same((out, of_input, of_weight, of_bias), expected)
        assert config_of(layer.weight).matmul == matmul


@pytest.mark.parametrize("sequence_parallel", [False, True], ids=["", "sequence"])
@pytest.mark.parametrize("name", SCALED.values())
def test_scaled_products_are_those_of_linear(name, sequence_parallel):
    """Rows that are no multiple of what shares bytes, and gradients rounded by chance, included."""
    ranks.run(2, "cpu", compare_with_linear, name, "scaled", sequence_parallel, False)


@pytest.mark.parametrize("matmul", ["dequantized", "scaled"])
def test_autocast(matmul):
    name = next(iter(SCALED.values()))
    ranks.run(2, "cpu", compare_with_linear, name, matmul, False, True)


def what_is_kept(mesh, matmul):
    """The shapes and dtypes that a layer keeps for its backward."""
    with mm.parallel():
        layer, _ = layer_of("column", scaled.SCALED[0], matmul, sequence_parallel=True)
        saved = saved_by(lambda: layer(input_of(layer, sequence=4)))
    assert any(isinstance(one, nc.QuantizedTensor) for one in saved)
    plain = [one for one in saved if not isinstance(one, nc.QuantizedTensor)]
    return [(tuple(one.shape), str(one.dtype)) for one in plain]


def test_of_a_sequence_a_rank_keeps_its_part():
    """Or the bytes of the whole, never the decoded weight or a gathered input."""
    assert ranks.run(2, "cpu", what_is_kept, "dequantized") == [[((4, 1, IN), "torch.float32")]] * 2
    for kept in ranks.run(2, "cpu", what_is_kept, "scaled"):
        assert kept
        assert all(dtype == "torch.uint8" or len(shape) < 3 for shape, dtype in kept)


def order_of_a_backward(mesh, matmul, sequence_parallel):
    """When what begins and ends, by the names of the functions that are called."""
    events = []

    def noted(name, function):
        def noting(*arguments, **options):
            events.append(name)
            result = function(*arguments, **options)
            if isinstance(result, dist.Work):
                return _Noted(result, events)
            return result

        return noting

    with mm.parallel():
        layer, _ = layer_of("column", scaled.SCALED[0], matmul, sequence_parallel=sequence_parallel)
        out, _ = layer(input_of(layer, sequence=4))
        with pytest.MonkeyPatch.context() as patched:
            reduce = "reduce_scatter_tensor" if sequence_parallel else "all_reduce"
            patched.setattr(dist, reduce, noted("reduce", getattr(dist, reduce)))
            kind = nc._C.LayerBackward
            for step in ("input_gradient", "weight_gradient"):
                patched.setattr(kind, step, noted(step, getattr(kind, step)))
            out.sum().backward()
    return events


class _Noted:
    """A collective under way, whose end is noted."""

    def __init__(self, work, events):
        self.work, self.events = work, events

    def wait(self):
        self.events.append("waited")
        return self.work.wait()


@pytest.mark.parametrize("sequence_parallel", [False, True], ids=["", "sequence"])
@pytest.mark.parametrize("matmul", ["dequantized", "scaled"])
def test_the_reduction_runs_beside_the_weight_gradient(matmul, sequence_parallel):
    expected = ["input_gradient", "reduce", "weight_gradient", "waited"]
    found = ranks.run(2, "cpu", order_of_a_backward, matmul, sequence_parallel)
    assert found == [expected] * 2


def second_derivative(mesh):
    with mm.parallel():
        layer, _ = layer_of("column", FORMATS[0])
        x = input_of(layer)
        (gradient,) = torch.autograd.grad(layer(x)[0].square().sum(), x, create_graph=True)
        gradient.sum().backward()


def test_no_second_derivative():
    found = ranks.errors(2, "cpu", second_derivative)
    assert all("twice" in text for _, text in found), found
