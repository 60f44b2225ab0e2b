"""peft's LoRA, the real one, over frozen quantized weights: training, and merging."""

from pathlib import Path

import pytest
import torch

import narrowcast as nc
import ranks
from internals import tensors_of
from models import GATHERS, assert_quantized, assert_same, batch, build_plain, same, shard, train
from narrowcast.tensor import dtensors

pytest.importorskip("peft", reason="peft is not installed")
TESTED_FORMATS = GATHERS


def adapted(format, device, mesh=None):
    """A model with adapters, trained for two steps, and its quantized layer with one."""
    from peft import LoraConfig, get_peft_model

    model = nc.convert(build_plain(format, device), format, trainable=False)
    torch.manual_seed(1)
    config = LoraConfig(target_modules=["up", "down"], r=4, init_lora_weights=False)
    adapted = get_peft_model(model, config)
    if mesh is not None:
        shard(model, mesh)
    optimizer = nc.FusedAdam(adapted.parameters(), lr=1e-2)
    before = [bytes_of(one) for one in quantized(model)]
    losses = train(model, optimizer, 2, device)
    assert all(map(same, before, [bytes_of(one) for one in quantized(model)]))
    return adapted, losses


def quantized(model):
    local = [dtensors.local_of(p).detach() for p in model.parameters()]
    return [one for one in local if isinstance(one, nc.QuantizedTensor)]


def bytes_of(tensor):
    return torch.cat([one.reshape(-1).view(torch.uint8) for one in tensors_of(tensor)])


def output(model):
    with torch.no_grad():
        return model(batch(model, 9, model.head.weight.device)[0])


def test_merging(format, device):
    adapted_model, _ = adapted(format, device)
    model, layer = adapted_model.base_model.model, adapted_model.base_model.model.blocks[0].up
    weight, delta = layer.base_layer.weight, layer.get_delta_weight("default").detach()
    decoded, apart = weight.dequantize().clone(), output(model)
    adapted_model.merge_adapter()
    assert_quantized(weight.detach(), decoded + delta)
    together = output(model)
    assert not torch.equal(together, apart)  # for the sum is rounded
    adapted_model.unmerge_adapter()
    torch.testing.assert_close(weight.dequantize(), decoded, rtol=0, atol=1e-6)
    torch.testing.assert_close(output(model), apart)
    adapted_model.merge_adapter(safe_merge=True)
    torch.testing.assert_close(output(model), together)
    merged = adapted_model.merge_and_unload()
    assert merged.blocks[0].up.weight is weight
    held = merged.state_dict()["blocks.0.up.weight"]
    torch.testing.assert_close(held, decoded + delta, rtol=0, atol=1e-6)
    torch.testing.assert_close(output(nc.to_plain(merged)), apart)  # and here it is not


@ranks.on(2)
def test_sharded(mesh, format):
    one, losses = adapted(format, mesh.device_type)
    other, sharded_losses = adapted(format, mesh.device_type, mesh)
    assert losses == sharded_losses
    apart = output(one.base_model.model)
    for change in ("merge_adapter", "unmerge_adapter", "merge_adapter"):
        for each in (one, other):
            getattr(each, change)()
        torch.testing.assert_close(
            output(other.base_model.model), output(one.base_model.model), rtol=0, atol=0
        )
    plain = nc.to_plain(other.merge_and_unload())
    torch.testing.assert_close(output(plain), apart)


def test_adapters_can_be_left_out(format, device):
    """Converted afterwards, by the name that peft gives to what it adapts."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(target_modules=["up", "down"], r=4)
    model = get_peft_model(build_plain(format, device), config).base_model.model
    nc.convert(model, format, filter="*.base_layer")
    expected = nc.convert(build_plain(format, device), format, trainable=False)
    assert len(quantized(model)) == 4
    assert_same(model.blocks[0].up.base_layer.weight.detach(), expected.blocks[0].up.weight)


def test_the_example(monkeypatch, device):
    pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "examples"))
    import lora

    model = lora.build(GATHERS[-1]).to(device)
    weight = quantized(model)[0]
    before = bytes_of(weight)
    lora.train(model, 2)
    adapters = [p for name, p in model.named_parameters() if "lora_B" in name]
    assert adapters
    assert all(p.any() for p in adapters)  # they begin as zeros
    assert same(bytes_of(weight), before)
