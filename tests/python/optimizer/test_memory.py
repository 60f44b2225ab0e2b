"""FusedAdam beside what changes between its steps: the memory and the dtype of parameters, the
strides and the dtype of gradients.
"""

import pytest
import torch
from torch import nn

import narrowcast as nc
from mixed_model import give_gradients, model_of
from models import assert_quantized, build, loss_of, same, train
from weights import quantized, value_of


def test_gradients_of_another_float_dtype():
    results = []
    for dtype in (torch.float32, torch.bfloat16):
        layer = nc.convert(nn.Linear(64, 64, bias=False), "nvfp4")
        nn.init.constant_(layer.weight, 0.5)
        optimizer = nc.FusedAdam(layer.parameters())
        gradient = torch.arange(4096.0).view(64, 64).bfloat16().to(dtype)
        layer.weight.to(dtype)
        layer.to(dtype)
        layer.weight.grad = gradient
        optimizer.step()
        results.append(layer.weight.value.clone())
    assert same(*results)


def test_strided_gradients_are_read():
    results = []
    for strided in (False, True):
        layer = nc.convert(nn.Linear(64, 64, bias=False), "mxfp8_e4m3")
        nn.init.constant_(layer.weight, 0.5)
        optimizer = nc.FusedAdam(layer.parameters())
        gradient = torch.arange(4096.0).view(64, 64)
        layer.weight.grad = gradient.t().contiguous().t() if strided else gradient
        optimizer.step()
        results.append(quantized(layer.weight).rowwise_data.clone())
    assert same(*results)


def test_memory_that_moved_is_found():
    """A parameter with other memory of the same kind is followed; of another kind, refused."""
    model, other = model_of(), model_of()
    optimizers = [nc.FusedAdam(m.named_parameters(), lr=1e-2) for m in (model, other)]
    for step in range(3):
        for m, optimizer in zip((model, other), optimizers, strict=True):
            give_gradients(m, step)
            optimizer.step()
        model[2].weight.data = model[2].weight.detach().clone()
        torch.utils.swap_tensors(model[0].weight, nn.Parameter(model[0].weight.detach().clone()))
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert same(value_of(a), value_of(b))
    model[2].weight.data = torch.ones(3, 64)
    with pytest.raises(ValueError, match=r"2\.weight: state exp_avg has 4096 elements"):
        optimizers[0].step()
    model[2].weight.data = torch.ones(64, 64, dtype=torch.bfloat16)
    with pytest.raises((ValueError, TypeError), match=r"2\.weight"):
        optimizers[0].step()


def test_changes_of_dtype_and_memory_keep_training():
    """module.to(dtype) after the optimizer was made."""
    model = build("mxfp8_e4m3")
    optimizer = nc.FusedAdam([p for p in model.parameters() if isinstance(p, nc.MasterWeight)])
    train(model, optimizer, 1)
    model.to(torch.bfloat16)
    loss_of(model, 1, dtype=torch.bfloat16).backward()
    optimizer.step()
    weight = model.head.weight
    assert weight.dtype == torch.bfloat16
    assert optimizer.state[weight]["step"] == 2
    assert_quantized(weight, weight.value)
