"""Products that F.linear does not show: composite functions of torch, transforms and graphs."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard

import narrowcast as nc
import ranks
from models import GATHERS, one_of_each, same
from weights import quantized

TESTED_FORMATS = GATHERS
WIDTH = 128


def matrices(model, format):
    """The model with all its matrices converted, whatever they are called."""
    for module in model.modules():
        for name, parameter in [*module._parameters.items()]:
            if parameter is not None and parameter.dim() == 2:
                holder = nn.Linear(1, 1, bias=False)
                holder.weight = parameter
                setattr(module, name, nc.convert(holder, format).weight)
    return model


def attention():
    return nn.TransformerEncoderLayer(WIDTH, 2, WIDTH, dropout=0.0, batch_first=True)


class Attention(nn.MultiheadAttention):
    def forward(self, x):
        return super().forward(x, x, x)


MODELS = {
    "attention alone": lambda: Attention(WIDTH, 2),
    "attention": attention,
    "encoder": lambda: nn.TransformerEncoder(attention(), 1),
    "lstm": lambda: nn.LSTM(WIDTH, WIDTH),
    "gru": lambda: nn.GRU(WIDTH, WIDTH),
}


def build(name, format=None):
    torch.manual_seed(0)
    model = MODELS[name]()
    return model if format is None else matrices(model, format)


def output_of(model, x):
    output = model(x)
    return output[0] if isinstance(output, tuple) else output


def batch():
    return torch.randn(4, 3, WIDTH, generator=torch.Generator().manual_seed(1))


def decoded(model, plain, usage="rowwise"):
    """The plain model with the values of a usage."""
    with torch.no_grad():
        for mine, other in zip(plain.parameters(), model.parameters(), strict=True):
            is_converted = isinstance(other, nc.MasterWeight)
            mine.copy_(quantized(other).dequantize(usage=usage) if is_converted else other)
    return plain


@pytest.mark.parametrize("name", MODELS)
def test_forward_and_fast_paths(format, name):
    model = build(name, format)
    plain, x = decoded(model, build(name)), batch()
    assert any(isinstance(one, nc.MasterWeight) for one in model.parameters())
    for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
        with mode():
            torch.testing.assert_close(output_of(model, x), output_of(plain, x))
            model.eval(), plain.eval()


@pytest.mark.parametrize("name", MODELS)
def test_gradients(format, name):
    """Weights' gradients are those of the decoded model where its formats' usages are of one value;
    elsewhere the first product's input sees columnwise values.
    """
    model = build(name, format)
    plain, x = decoded(model, build(name)), batch()
    output_of(model, x).square().sum().backward()
    output_of(plain, x).square().sum().backward()
    exact = nc.format(format).columnwise_derived
    for mine, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert type(mine.grad) is torch.Tensor
        if exact:
            torch.testing.assert_close(mine.grad, other.grad, rtol=1e-4, atol=1e-4)
        else:
            assert F.cosine_similarity(mine.grad.flatten(), other.grad.flatten(), dim=0) > 0.9


def runs_in_bfloat16(plain, x):
    """oneDNN has no primitive of an LSTM for some processors."""
    try:
        with torch.autocast("cpu", torch.bfloat16):
            plain(x)
    except RuntimeError as error:
        assert "could not create a primitive" in str(error)
        return False
    return True


@pytest.mark.parametrize("name", [*MODELS])  # without clients' own
@pytest.mark.parametrize("chosen", one_of_each(lambda f: f.columnwise_derived))
def test_autocast(chosen, name):
    """As the decoded model's, to the bit: in bfloat16, with gradients of the weights' own dtype."""
    model = build(name, chosen)
    plain, x = decoded(model, build(name)), batch()
    if not runs_in_bfloat16(plain, x):
        pytest.skip("torch's own layer does not run in bfloat16 on this processor")
    outputs = []
    for one in (model, plain):
        with torch.autocast("cpu", torch.bfloat16):
            outputs.append(output_of(one, x))
        outputs[-1].float().square().sum().backward()
    assert outputs[0].dtype == outputs[1].dtype
    assert same(*outputs)
    for mine, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert mine.grad.dtype == other.grad.dtype
        if nc.format(chosen).columnwise_derived:
            # Autocast casts a parameter once, and so sums gradients of all steps in bfloat16.
            near = {"rtol": 2e-2, "atol": 1e-2} if name == "gru" else {}
            torch.testing.assert_close(mine.grad, other.grad, **near)


class Own(torch.autograd.Function):
    """A product of a client's own, which transposes the weight and saves the view."""

    @staticmethod
    def forward(ctx, x, turned):
        ctx.save_for_backward(x, turned)
        return x @ turned

    @staticmethod
    def backward(ctx, gradient):
        x, turned = ctx.saved_tensors
        return gradient @ turned.t(), x.flatten(0, -2).t() @ gradient.flatten(0, -2)


class OwnLinear(nn.Linear):
    def forward(self, x):
        return Own.apply(x, self.weight.t()) + self.bias


MODELS["own"] = lambda: nn.Sequential(OwnLinear(WIDTH, WIDTH), OwnLinear(WIDTH, WIDTH))


@pytest.mark.parametrize("name", ["attention", "gru", "own"])
@ranks.on(2, "cpu")
def test_sharded_is_whole(mesh, format, name):
    """As one process that sees the same batches; the backward reads what was gathered for it."""
    whole, model = build(name, format), build(name, format)
    fully_shard(model, mesh=mesh, reshard_after_forward=True)
    optimizers = [nc.FusedAdam(one.parameters(), lr=1e-2) for one in (model, whole)]
    for _ in range(2):
        outputs = [output_of(one, batch()) for one in (model, whole)]
        assert same(*outputs)
        for output, optimizer in zip(outputs, optimizers, strict=True):
            output.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()


def layer(format=None):
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH, bias=False))
    return made if format is None else nc.convert(made, format)


def transformed(model, x):
    """Of torch.func and forward-mode differentiation: each a tensor or some."""
    call = torch.func.functional_call
    parameters = dict(model.named_parameters())

    def loss(parameters, x):
        return call(model, parameters, (x,)).square().sum()

    return {
        "vmap": torch.vmap(model)(x),
        "vmap of matrices": torch.vmap(model, in_dims=1)(x),
        "dequantized": torch.vmap(lambda one: torch.einsum("ti,oi->to", one, model[0].weight))(x),
        "functional_call": call(model, parameters, (x,)),
        "jvp": torch.func.jvp(model, (x,), (x.cos(),))[1],
        "grad": [*torch.func.grad(loss)(parameters, x).values()],
        "of inputs": torch.func.grad(loss, argnums=1)(parameters, x),
        "by sample": [*torch.vmap(torch.func.grad(loss), (None, 0))(parameters, x).values()],
        "jacobian": torch.func.jacrev(model)(x[0, 0]),
    }


def test_transforms(format):
    """All are derivatives of the forward, so of rowwise values."""
    model = layer(format)
    plain, x = decoded(model, layer()), batch()
    got, expected = transformed(model, x), transformed(plain, x)
    for name, value in got.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-4, msg=name)


class Bilinear(nn.Bilinear):
    def forward(self, x):
        return super().forward(x, x)


class Bags(nn.EmbeddingBag):
    def forward(self, x):
        return x * super().forward(torch.arange(12).view(3, 4))


WHOLE = {
    "lstm": MODELS["lstm"],
    "bilinear": lambda: Bilinear(WIDTH, WIDTH, 2),
    "bags": lambda: Bags(WIDTH, WIDTH),
}


@pytest.mark.parametrize("name", WHOLE)
def test_operators_that_hold_whole_products(name):
    """They read bytes, too, where torch's functions of them are not seen."""
    torch.manual_seed(0)
    model, x = WHOLE[name](), batch()
    for key, one in [*model.named_parameters()]:
        if one.dim() > 1:
            holder = nn.Linear(1, 1, bias=False)
            holder.weight = one
            setattr(model, key, nc.convert(holder, "nvfp4_1d").weight)
    parameters, expected = dict(model.named_parameters()), output_of(model, x)

    def loss(parameters):
        call = torch.func.functional_call(model, parameters, (x,))
        output = call[0] if isinstance(call, tuple) else call
        return output.sum(), output

    _, (_, output) = torch.func.grad_and_value(loss, has_aux=True)(parameters)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(output_of(torch.jit.trace(model, x), x), expected)


def test_transforms_of_scaled_products():
    model, x = nc.convert(layer(), "mxfp8_e4m3", matmul="scaled"), batch()
    with pytest.raises(NotImplementedError, match=r'0\.weight.*scaled products.*"dequantized"'):
        torch.func.jvp(model, (x,), (x,))


def test_export(format):
    """As it is; torch takes parameters apart into their bytes if they require no gradient."""
    model, x = layer(format).requires_grad_(False), batch()
    program = torch.export.export(model, (x,))
    assert same(program.module()(x), model(x))
    assert same(program.run_decompositions().module()(x), model(x))
