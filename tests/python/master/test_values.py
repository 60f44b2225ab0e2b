"""What torch and users do with parameters, done to weights that are their own masters: values are
those of plain weights, and products read the bytes of the values of that moment.
"""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import narrowcast as nc
from by_hand import (
    FORMATS,
    are_trained,
    batch,
    by_hand,
    converted,
    plain,
    reads_its_bytes,
    same,
    train,
    values,
    weights,
)
from models import pickled

TESTED_FORMATS = FORMATS


def _read(format, seed=0):
    """One whose bytes have been read, so that they are there to be stale."""
    model = converted(format, seed=seed)
    model(batch(0))
    return model


def _check(model, format, expected=None):
    assert are_trained(model)
    assert reads_its_bytes(model, format)
    if expected is not None:
        assert same(values(model), values(expected))


# ---- what is converted ----


def test_weights_that_are_trained_are_their_own_masters(format):
    model = plain()
    model[0].down.weight.requires_grad_(False)
    memory = model[0].up.weight.data_ptr()
    nc.convert(model, format)
    assert isinstance(model[0].up.weight, nc.MasterWeight)
    assert model[0].up.weight.dtype == torch.float32
    assert model[0].up.weight.data_ptr() == memory
    assert isinstance(model[0].down.weight, nc.QuantizedTensor)  # the bytes alone
    with pytest.raises(ValueError, match="quantized already"):
        nc.convert(model, format)


# ---- state dicts and copies ----


@pytest.mark.parametrize("source", [plain, lambda seed: converted(FORMATS[0], seed=seed)])
@pytest.mark.parametrize("assign", [False, True])
def test_a_load(format, source, assign):
    model, other = _read(format), source(seed=1)
    model.load_state_dict(other.state_dict(), assign=assign)
    _check(model, format, other)
    there = plain()
    there.load_state_dict(model.state_dict())
    assert same(values(there), values(other))


def test_copies_and_pickles(format):
    model = _read(format)
    model[0].up.weight.mark = "theirs"
    loss = model(batch(0)).sum()
    loss.backward()
    for made in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), pickled(model)):
        _check(made, format, model)
        assert made[0].up.weight.requires_grad
        assert made[0].up.weight.mark == "theirs"
        with torch.no_grad():
            made[0].up.weight.add_(1.0)
        _check(made, format)
    assert torch.equal(copy.deepcopy(model)[0].up.weight.grad, model[0].up.weight.grad)
    _check(model, format)


def test_a_copy_has_no_bytes_until_a_product_reads_them(format):
    copied = copy.deepcopy(_read(format))
    assert not any(one.cell._store is not None for one in weights(copied))
    copied(batch(0))
    assert all(one.cell._store is not None for one in weights(copied))


def test_averages(format):
    models = converted(format), by_hand(format)
    averages = [AveragedModel(one, multi_avg_fn=get_ema_multi_avg_fn(0.9)) for one in models]
    plain_means = [AveragedModel(one) for one in models]
    for model, average, mean in zip(models, averages, plain_means, strict=True):
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        for step in range(3):
            train(model, [optimizer], 1, first=step)
            average.update_parameters(model)
            mean.update_parameters(model)
    for mine, other in (averages, plain_means):
        assert same(values(mine.module), values(other.module))
        assert torch.equal(mine(batch(3)), other(batch(3)))


# ---- writes to whole models ----


def test_another_memory(format):
    model, other = _read(format), plain(seed=1)
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        mine.data = theirs.data
    _check(model, format, other)
    weight, memory = model[0].up.weight, other[0].up.weight
    memory.data.mul_(0.5)  # torch counts it for neither
    nc.note_write(weight)
    _check(model, format, other)
    weight.data = memory.detach()
    with torch.no_grad():
        memory.mul_(0.5)  # one memory, and one count
    _check(model, format, other)
    flat = parameters_to_vector(other.parameters()).detach().clone()
    begin = 0
    for mine in model.parameters():
        mine.data = flat[begin : begin + mine.numel()].view(mine.shape)
        begin += mine.numel()
    model(batch(0))
    flat.mul_(0.5)
    _check(model, format)
    vector_to_parameters(parameters_to_vector(other.parameters()), model.parameters())
    _check(model, format, other)
    with pytest.raises(TypeError, match="its value is float32"):
        model[0].up.weight.data = torch.ones(512, 256, dtype=torch.float64)


# ---- reads ----


def test_what_is_no_product_reads_the_value(format):
    model = _read(format)
    weight, value = model[0].up.weight, model[0].up.weight.value.clone().requires_grad_()
    assert torch.equal(weight.norm(), value.norm())
    for penalty in (lambda w: w.square().sum(), lambda w: (w - 1.0).abs().sum()):
        mine, theirs = torch.autograd.grad(penalty(weight), weight), None
        theirs = torch.autograd.grad(penalty(value), value)
        assert torch.equal(mine[0], theirs[0])
    assert weight.tolist() == value.tolist()
    assert (weight.detach().numpy() == value.detach().numpy()).all()


X = torch.randn(8, 256, generator=torch.Generator().manual_seed(2))
PRODUCTS = {
    "matmul": lambda w: X @ w.t(),
    "matmul of three dimensions": lambda w: X.view(2, 4, 256) @ w.mT,
    "mm": lambda w: torch.mm(X, w.t()),
    "mv": lambda w: torch.mv(w, X[0]),
    "addmm": lambda w: torch.addmm(X[:, :1], X, w.t()),
    "bmm": lambda w: torch.bmm(w[None], X.t()[None]),
    "einsum": lambda w: torch.einsum("bi,oi->bo", X, w),
    "rows": lambda w: X @ w[128:256].t(),
    "embedding": lambda w: nn.functional.embedding(torch.arange(8), w),
    "bilinear": lambda w: nn.functional.bilinear(X, X, w.view(2, 256, 256)),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_read_the_bytes(format, name):
    weight = _read(format)[0].up.weight
    decoded = nc.quantize(weight.value.clone(), format).dequantize().requires_grad_()
    mine, expected = PRODUCTS[name](weight), PRODUCTS[name](decoded)
    assert torch.equal(mine, expected)
    mine.sum().backward()
    assert weight.grad.shape == weight.shape


def test_stale_weights_are_cast_together(format, monkeypatch):
    """After a step of an optimizer the first product has the bytes of all of them made."""
    model = _read(format)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    train(model, [optimizer], 1)
    assert all(one._store.is_stale for one in weights(model))
    model[0].up(batch(0))
    assert not any(one._store.is_stale for one in weights(model))
