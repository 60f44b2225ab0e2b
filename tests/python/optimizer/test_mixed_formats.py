"""What goes wrong in the field in optimizers, over ranks and in checkpoints, and not here. Each
test says what happens elsewhere: "TE" is Transformer Engine.
"""

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn

import narrowcast as nc
from models import STORAGES, assert_quantized, assert_same


def test_element_types_mixed_in_one_group():
    # TE's fused Adam takes the output type of a group from its first tensor: e5m2 weights get e4m3
    # codes.
    torch.manual_seed(0)
    names = ("fp8_e4m3", "fp8_e5m2", "mxfp8_e4m3", "mxfp8_e5m2", "nvfp4")
    layers = [nc.convert(nn.Linear(64, 64, bias=False), name) for name in names]
    optimizer = nc.FusedAdam([layer.weight for layer in layers], lr=0.1)
    for layer in layers:
        layer.weight.grad = torch.randn(64, 64)
    optimizer.step()
    for layer, name in zip(layers, names, strict=True):
        assert layer.weight.format is nc.format(name)
        assert_quantized(layer.weight.detach(), layer.weight.value)


@pytest.mark.parametrize("name", [name for name in STORAGES if nc.format(name).tensor_amax])
def test_scales_survive_a_checkpoint_in_float32(name, tmp_path):
    # TE under FSDP2: a distributed checkpoint stores the scale in the parameter's bfloat16.
    x = torch.randn(64, 64) * (1 + 2**-20)
    saved, loaded = (nc.quantize(value, name).to(torch.bfloat16) for value in (x, x * 0))
    dcp.save({"w": saved}, checkpoint_id=tmp_path, no_dist=True)
    dcp.load({"w": loaded}, checkpoint_id=tmp_path, no_dist=True)
    assert loaded.dtype == torch.bfloat16
    assert_same(loaded, saved)
    assert loaded.tensor_amax.dtype == torch.float32
    assert loaded.tensor_amax.bfloat16() != loaded.tensor_amax
