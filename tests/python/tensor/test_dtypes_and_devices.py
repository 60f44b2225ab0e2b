"""A QuantizedTensor in another logical dtype or on another device: the same bytes, and the same
parameter of its module; and torch.set_default_dtype, which changes nothing.
"""

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.fsdp import fully_shard

import narrowcast as nc
import ranks
from internals import tensors_of
from matrices import of_shape
from models import assert_same, one_of_each, same


def test_logical_dtype(format):
    """to(dtype) keeps the bytes; float() and its kin make a plain tensor, unless it is narrow."""
    _, q = of_shape(format)
    narrow = q.to(torch.bfloat16)
    assert isinstance(narrow, nc.QuantizedTensor)
    assert narrow.dtype == torch.bfloat16
    assert_same(narrow, q)
    assert q.to(torch.float32) is q
    for plain, dtype in (
        (q.float(), torch.float32),
        (narrow.float(), torch.float32),
        (q.bfloat16(), torch.bfloat16),
        (q.half(), torch.float16),
        (q.double(), torch.float64),
        (narrow.half(), torch.float16),
    ):
        assert type(plain) is torch.Tensor
        assert torch.equal(plain, q.dequantize().to(dtype))
    assert narrow.bfloat16() is narrow  # torchtitan's experts ask so before a product
    assert isinstance(q.to(torch.float16).half(), nc.QuantizedTensor)
    with pytest.raises(NotImplementedError, match="int8"):
        q.to(torch.int8)


def test_module_to(format):
    """Of a frozen weight."""
    layer = nc.convert(nn.Linear(64, 64), format, trainable=False)
    weight, before = layer.weight, layer.weight.detach().clone()
    layer.to(torch.bfloat16)
    assert layer.weight is weight
    assert weight.dtype == layer.bias.dtype == torch.bfloat16
    assert_same(weight, before)
    layer.to("cpu")
    layer.bfloat16()  # which it is
    assert layer.weight is weight
    for convert in (layer.float, layer.half, layer.double):
        with pytest.raises(TypeError, match=r"weight.*module.to\(dtype\)"):
            convert()
    assert isinstance(layer.weight, nc.QuantizedTensor)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_across_devices(format):
    _, q = of_shape(format)
    there = q.cuda()
    assert there.device.type == "cuda"
    assert all(t.is_cuda for t in tensors_of(there))
    assert_same(there.cpu(), q)
    target = torch.empty_like(q)
    target.copy_(there)
    assert_same(target, q)
    layer = nc.convert(nn.Linear(64, 64), format)
    weight, before = layer.weight, layer.weight.detach().clone()
    layer.cuda()
    assert layer.weight is weight
    assert_same(weight, before)
    pinned = q.pin_memory()
    assert pinned.is_pinned()
    assert not q.is_pinned()
    assert_same(pinned, q)


DTYPES = [torch.bfloat16, torch.float16, torch.float64]


FORMATS = one_of_each(lambda f: (f.tensor_amax, f.amax, f.shard_row_step > 32))


def trained(mesh, format, dtype):
    """Two steps, a write and a load that rank 0 sends; rows that cuts divide, too."""
    torch.manual_seed(0)
    layers = nn.Linear(64, 96, dtype=torch.float32), nn.Linear(96, 64, dtype=torch.float32)
    model = fully_shard(nc.convert(nn.Sequential(*layers), format), mesh=mesh)
    x = torch.randn(4, 64, dtype=torch.float32)
    torch.set_default_dtype(dtype)
    try:
        optimizer = nc.FusedAdam(model.parameters(), lr=1e-2)
        for _ in range(2):
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            local = model[0].weight.to_local()
            local.copy_(local.value * 2)
        y = model(x)
        state = {name: p.full_tensor() for name, p in model.state_dict().items()}
        state = state if mesh.get_local_rank() == 0 else {}
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        set_model_state_dict(model, state, options=options)
        z = model(x).detach()
        model.reshard()
        return y.detach(), z, model[0].weight.to_local().value.clone()
    finally:
        torch.set_default_dtype(torch.float32)


@ranks.on(2, "cpu")
def test_sharded_training(mesh, formats=FORMATS):
    for format in formats:
        expected = trained(mesh, format, torch.float32)
        for dtype in DTYPES:
            assert all(map(same, trained(mesh, format, dtype), expected)), (format, dtype)


@pytest.mark.parametrize("default", ["dtype(torch.bfloat16)", "device('meta')"])
def test_import(default):
    script = f"import torch; torch.set_default_{default}; import narrowcast; print('imported')"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert result.stdout == "imported\n", result.stderr
