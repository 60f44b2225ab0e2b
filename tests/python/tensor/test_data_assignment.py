"""Assignments to `.data`: to a weight in training of any value, to frozen bytes of what is like
them, or refused.
"""

import copy
import weakref

import pytest
import torch
from torch import nn

import narrowcast as nc
import ranks
from models import FEW, GATHERS, assert_same, same


def test_assigning_data(format):
    """As libraries change dtypes: value, bytes and dtype are those of what is assigned. To bytes it
    is a write. Optimizers go on, with state and without.
    """
    layer = nc.convert(nn.Linear(64, 64, bias=False, dtype=torch.bfloat16), format)
    weight, value = layer.weight, layer.weight.data.to(torch.float32)
    twin = copy.deepcopy(layer).to(torch.float32)
    weight.data = value
    assert layer.weight is weight
    assert weight.requires_grad
    assert weight.dtype == torch.float32
    assert weight.value is value.value and weight.cell is value.cell
    optimizers = [nc.FusedAdam(one.parameters(), lr=0.1) for one in (layer, twin)]
    for step in range(3):
        for one, optimizer in zip((layer, twin), optimizers, strict=True):
            one(torch.full((2, 64), float(step))).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert same(weight.value, twin.weight.value)
        assert_same(weight, twin.weight)
        weight.data = weight.data.clone()
        with torch.no_grad():
            twin.weight.mul_(1.0)


@pytest.mark.parametrize(
    "value",
    [
        lambda format: torch.ones(64, 64),
        lambda format: nc.quantize(torch.ones(128, 64), format),
        lambda format: nc.quantize(torch.ones(128, 64), format)[:64],
        lambda format: nc.quantize(torch.ones(64, 64), next(n for n in GATHERS if n != format)),
    ],
)
def test_assigning_other_data_is_refused(value, format):
    """It would change nothing, in silence: torch swaps what a wrapper does not have."""
    if 64 % nc.format(format).row_step:
        pytest.skip("cannot be cut there")
    q = nc.quantize(torch.randn(64, 64), format)
    before = q.dequantize()
    with pytest.raises(NotImplementedError, match=r"\.data .*copy_"):
        q.data = value(format)
    assert torch.equal(q.dequantize(), before)


# ---- module.to(), which gives what it has converted to the parameter by .data ----

CONVERSIONS = {
    "device": lambda module, device: module.to(device),
    "dtype": lambda module, device: module.to(torch.bfloat16),
    "same dtype": lambda module, device: module.to(torch.float32),
    "shared memory": lambda module, device: module.share_memory(),
    "empty": lambda module, device: module.to_empty(device=device),
}


@pytest.mark.parametrize("name", CONVERSIONS)
def test_a_converted_parameter_is_the_same_one(format, device, name):
    """With what others know it by: hooks, attributes, weak references."""
    layer = nc.convert(torch.nn.Linear(64, 64, bias=False), format).to(device)
    weight, value = layer.weight, layer.weight.value.clone()
    known, weight.mark, calls = weakref.ref(weight), "mine", []
    accumulator = weight.expand_as(weight).grad_fn.next_functions[0][0]  # as DDP has it
    accumulator.register_hook(lambda *gradients: calls.append(gradients))
    weight.register_post_accumulate_grad_hook(calls.append)
    CONVERSIONS[name](layer, device)
    assert layer.weight is weight and known() is weight and weight.mark == "mine"
    assert type(weight) is nc.MasterWeight and isinstance(weight, torch.nn.Parameter)
    layer(torch.ones(2, 64, dtype=weight.dtype, device=device)).sum().backward()
    torch_forgets = name == "dtype"  # of plain parameters, too
    assert len(calls) == (1 if torch_forgets else 2)  # the accumulator's hook
    assert weight.grad.dtype == weight.dtype
    if name != "empty":
        assert same(weight.value, value)


def test_to_meta_and_back(format):
    """Torch makes a plain parameter anew, too."""
    layer = nc.convert(torch.nn.Linear(64, 64, bias=False), format)
    value = layer.weight.value.clone()
    layer.to("meta")
    assert type(layer.weight) is nc.MasterWeight and layer.weight.value.is_meta
    layer.to_empty(device="cpu").load_state_dict({"weight": value})
    assert same(layer.weight.value, value)
    assert_same(layer.weight, nc.quantize(value, format))


def in_ddp(mesh, name):
    torch.manual_seed(0)
    model = nc.convert(torch.nn.Linear(64, 64), name).to(mesh.device_type)
    model = torch.nn.parallel.DistributedDataParallel(model, process_group=mesh.get_group())
    model.to(mesh.device_type).to(torch.float32)
    optimizer = nc.FusedAdam(model.parameters(), lr=0.1)
    for _ in range(2):
        x = torch.full((4, 64), 1.0 + mesh.get_local_rank(), device=mesh.device_type)
        model(x).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.module.weight.value.cpu()


@pytest.mark.parametrize("name", FEW)
def test_torchs_ddp_reduces_gradients_of_converted_weights(name, device):
    one, other = ranks.run(2, device, in_ddp, name)
    assert same(one, other)
