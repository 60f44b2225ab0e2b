"""Operations that used to fail with words about something else."""

import pytest
import torch
from torch import nn

import narrowcast as nc

TESTED_FORMATS = ["mxfp8_e4m3", "nvfp4"]


def test_out_of_a_plain_tensor(format, device):
    """It gets the product of the bytes."""
    weight = nc.quantize(torch.randn(64, 64, device=device), format)
    x = torch.ones(3, 64, device=device)
    out = torch.empty(3, 64, device=device)
    assert torch.matmul(x, weight.t(), out=out) is out
    assert torch.equal(out, x @ weight.dequantize().t())


def test_equal_without_rowwise(device):
    ones, zeros = (
        nc.quantize(torch.full((64, 64), x, device=device), "mxfp8_e4m3", rowwise=False)
        for x in (1.0, 0.0)
    )
    assert not torch.equal(ones, zeros) and torch.equal(ones, ones.clone())


def test_chunks_of_one_row(format, device):
    """torch.chunk makes fewer chunks than asked for where there are not as many rows."""
    row = nc.quantize(torch.ones(1, 64, device=device), format, columnwise=False)
    (chunk,) = row.chunk(2)
    assert torch.equal(chunk.dequantize(), row.dequantize())


def test_parameters_of_another_memory_format(device):
    layer = nn.Conv2d(8, 8, 3, device=device).to(memory_format=torch.channels_last)
    optimizer = nc.FusedAdam(layer.named_parameters())
    layer.weight.grad = torch.ones_like(layer.weight)
    with pytest.raises(ValueError, match="weight is not contiguous"):
        optimizer.step()


def test_the_plugin_of_an_empty_path():
    with pytest.raises(ValueError, match="path of a plugin is empty"):
        nc.load_plugin("")


ADDRESSES = {
    "to_dlpack": torch.utils.dlpack.to_dlpack,
    "data_ptr": torch._C.TensorBase.data_ptr,  # as C++ asks for it
    "numpy": torch.Tensor.numpy,
    "apply_": lambda weight: weight.apply_(abs),  # would end the process
}


@pytest.mark.parametrize("name", ADDRESSES)
def test_what_asks_for_an_address(format, device, name):
    """C++ that asks no __torch_function__ gets an error, not a null pointer, from views too."""
    weight = nc.quantize(torch.ones(64, 64, device=device), format)
    for one in (weight, weight[32:], weight.view(-1), weight.clone(), nn.Parameter(weight)):
        with pytest.raises(
            (RuntimeError, TypeError),
            match=r"tensor subclasses|only .* on CPU|has no memory .* dequantize\(\)",
        ):
            ADDRESSES[name](one.detach())


def test_amax_of_a_dimension(format, device):
    weight = nc.quantize(torch.randn(64, 64, device=device), format)
    for amax in (weight.amax(1), torch.amax(weight, 1)):
        assert torch.equal(amax, weight.dequantize().amax(1))
