"""Memory that has become smaller than the tensor over it, as FSDP2 and users may make it: nothing
is read or written past its end, wherever it lies now.
"""

import pytest
import torch

import narrowcast as nc
from internals import store_of
from models import BUFFERS, GATHERS, Model, same
from weights import quantized, value_of

TESTED_FORMATS = GATHERS


def build(format, device):
    torch.manual_seed(0)
    model = nc.convert(Model(64), format).to(device)
    for p in model.parameters():
        p.grad = torch.full_like(p, 0.01, dtype=torch.float32)
    optimizer = nc.FusedAdam(model.named_parameters(), lr=1e-3)
    optimizer.step()
    return model, optimizer


def shrink(tensor, left):
    """Leaves a part of a tensor's memory; torch may put it where the whole was."""
    storage = tensor.untyped_storage()
    storage.resize_(int(storage.nbytes() * left))


def values(model):
    return {name: value_of(p).clone() for name, p in model.named_parameters()}


def assert_refused(model, optimizer, name):
    """The step says whose memory it is, and changes nothing; again, too."""
    with torch.no_grad():
        before = values(model)
        counts = [float(state["step"]) for state in optimizer.state.values()]
    for _ in range(2):
        with pytest.raises(ValueError, match="freed") as caught:
            optimizer.step()
        assert name in str(caught.value) or "matrix in" in str(caught.value)
    with torch.no_grad():
        assert all(same(before[n], now) for n, now in values(model).items())
    assert counts == [float(state["step"]) for state in optimizer.state.values()]


@pytest.mark.parametrize("left", [0, 0.5])
@pytest.mark.parametrize("buffer", BUFFERS)
def test_bytes(format, device, buffer, left):
    model, optimizer = build(format, device)
    tensor = getattr(quantized(model.head.weight), buffer)
    if tensor is None:
        return
    shrink(tensor, left)
    assert_refused(model, optimizer, "head.weight")


@pytest.mark.parametrize("left", [0, 0.5])
def test_casts_and_decodings(format, device, left):
    """Of a value to cast, and of bytes to decode."""
    value = torch.randn(64, 64, device=device)
    shrink(value, left)
    with pytest.raises(ValueError, match="freed"):
        nc.quantize(value, format)
    weight = nc.quantize(torch.randn(64, 64, device=device), format)
    shrink(weight.rowwise_data, left)
    with pytest.raises(ValueError, match="freed"):
        weight.dequantize()
    weight = nc.convert(torch.nn.Linear(64, 64).to(device), format).weight
    shrink(weight.value, left)
    with pytest.raises((ValueError, RuntimeError)):
        with torch.no_grad():
            store_of(weight).mark_stale()
        quantized(weight).dequantize()
