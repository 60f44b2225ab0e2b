"""Operations that would be lost, because they write to memory that a QuantizedTensor does not have,
or that used to fail with words about something else.
"""

import pytest
import torch
import torch.distributed as dist
from torch import nn

import narrowcast as nc
import ranks

TESTED_FORMATS = ["mxfp8_e4m3", "nvfp4"]


def weight_of(format, device="cpu"):
    layer = nc.convert(nn.Linear(64, 64, bias=False, device=device), format)
    return layer.weight.detach()


PRODUCTS = {
    "mm": lambda w, x: torch.mm(x, x, out=w),
    "matmul": lambda w, x: torch.matmul(x, x, out=w),
    "addmm": lambda w, x: torch.addmm(x, x, x, out=w),
    "add": lambda w, x: torch.add(x, x, out=w),
    "mul": lambda w, x: torch.mul(w, 2, out=w),
}


@pytest.mark.old_way("arithmetic in place is refused")
@pytest.mark.parametrize("name", PRODUCTS)
def test_out(format, device, name):
    weight, x = weight_of(format, device), torch.ones(64, 64, device=device)
    before = weight.dequantize()
    with pytest.raises(NotImplementedError, match=r"copy_ the result: that sets master and"):
        PRODUCTS[name](weight, x)
    assert torch.equal(weight.dequantize(), before)


def test_out_of_a_plain_tensor(format, device):
    """It gets the product of the bytes."""
    weight, x = weight_of(format, device), torch.ones(3, 64, device=device)
    out = torch.empty(3, 64, device=device)
    assert torch.matmul(x, weight.t(), out=out) is out
    assert torch.equal(out, x @ weight.dequantize().t())


def receive(mesh, format):
    weight = weight_of(format)
    rank, before, plain = dist.get_rank(), weight.dequantize(), torch.ones(64, 64)
    calls = {
        "allreduce_": lambda: dist.all_reduce(weight),
        "reduce_": lambda: dist.reduce(weight, 0),
        "recv_": lambda: dist.recv(weight, 1 - rank),
        "_allgather_base_": lambda: dist.all_gather_into_tensor(weight, plain[:32]),
        "_reduce_scatter_base_": lambda: dist.reduce_scatter_tensor(weight, plain.repeat(2, 1)),
        "alltoall_base_": lambda: dist.all_to_all_single(weight, plain),
        "allreduce_coalesced_": lambda: dist.all_reduce_coalesced([weight]),
    }
    for name, call in calls.items():
        with pytest.raises(NotImplementedError, match=f"{name} would receive values"):
            call()
        assert torch.equal(weight.dequantize(), before)
    dist.all_gather([weight, weight_of(format)], torch.ones(64, 64))  # torch copies into these
    assert torch.equal(weight.dequantize(), torch.ones(64, 64))


@pytest.mark.old_way("collectives into a weight are refused")
def test_collectives_into_a_weight(format):
    ranks.run(2, "cpu", receive, format)


@pytest.mark.old_way("a sparse tensor is copied as torch does not")
def test_copy_of_a_sparse_tensor(format, device):
    weight, value = weight_of(format, device), torch.eye(64, device=device)
    weight.copy_(value.to_sparse())
    assert torch.equal(weight.dequantize(), value)


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


@pytest.mark.old_way("a weight is no memory of its value")
@pytest.mark.parametrize("name", ADDRESSES)
def test_what_asks_for_an_address(format, device, name):
    """C++ that asks no __torch_function__ gets an error, not a null pointer, from views too."""
    weight = weight_of(format, device)
    for one in (weight, weight[32:], weight.view(-1), weight.clone(), nn.Parameter(weight)):
        with pytest.raises(
            (RuntimeError, TypeError),
            match=r"tensor subclasses|only .* on CPU|has no memory .* dequantize\(\)",
        ):
            ADDRESSES[name](one.detach())


def test_amax_of_a_dimension(format, device):
    weight = weight_of(format, device)
    for amax in (weight.amax(1), torch.amax(weight, 1)):
        assert torch.equal(amax, weight.master.amax(1))
