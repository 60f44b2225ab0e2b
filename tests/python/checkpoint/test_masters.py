"""What a checkpoint holds of a weight in training is its value, in float32, whoever saves it; and
what is loaded makes equal values, and bytes that are a cast of them.
"""

import copy
import io
import re
import subprocess
import sys

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn

import narrowcast as nc
from checkpoints import converted, layer
from internals import config_of
from models import assert_quantized, assert_same, one_of_each, same
from weights import quantized

BF16 = torch.bfloat16
TESTED_FORMATS = one_of_each(lambda f: f.tensor_amax)


def stepped(format, **options):
    """A weight whose value is none of its logical dtype, with bytes rounded by chance."""
    model = converted(format, **options)
    optimizer = nc.FusedAdam(model.parameters(), rounding="stochastic")
    model[0].weight.grad = torch.randn(model[0].weight.shape).to(model[0].weight.dtype)
    optimizer.step()
    return model


def test_a_state_dict_holds_values(format):
    """No copies of them, in modules that were copied or pickled too."""
    model, file = stepped(format, dtype=BF16), io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for one in (model, copy.deepcopy(model), torch.load(file, weights_only=False)):
        value, weight = one.state_dict()["0.weight"], one[0].weight
        assert type(value) is torch.Tensor
        assert not value.requires_grad
        assert same(value, model[0].weight.value)
        assert value.data_ptr() == weight.value.data_ptr()
        assert one[0].state_dict(keep_vars=True)["weight"] is weight


def test_a_weight_that_is_tied_or_moved_later(format):
    """The state dicts of the module that has it hold its value, too."""
    model = nn.Sequential(*(nn.Linear(128, 128) for _ in range(4)))
    nc.convert(model, format, filter=["0", "1"])
    model[2].weight = model[0].weight
    model[3].register_parameter("weight", nn.Parameter(model[1].weight.detach()))
    state = model.state_dict()
    assert {type(value) for value in state.values()} == {torch.Tensor}
    assert same(state["2.weight"], model[0].weight.value)
    assert same(state["3.weight"], model[1].weight.value)


def test_a_load_that_writes_to_the_state_dict(format, tmp_path):
    """As DCP does: the bytes follow, without load_state_dict."""
    model, other = converted(format), converted(format)
    dcp.save(model.state_dict(), checkpoint_id=tmp_path)
    held = other.state_dict()
    for _ in range(2):
        dcp.load(held, checkpoint_id=tmp_path)
        assert same(other[0].weight.value, model[0].weight.value)
        assert_quantized(other[0].weight.detach(), model[0].weight.value)
        for copied in (other[0].weight.detach().clone(), other[0].weight.detach().cpu()):
            assert_same(copied, model[0].weight)
        held["0.weight"].fill_(3.0)
        assert_same(copy.deepcopy(other)[0].weight, nc.quantize(other[0].weight.value, format))


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_assigned_values_are_quantized(format, device):
    """As in torch, the dtype is that of what is assigned; but float32 may be a master."""
    plain = layer(format).state_dict()
    for dtype in (torch.float32, BF16):
        model = nc.convert(layer(format, BF16, device=device), format, recompute=True)
        model[0].weight.requires_grad_(False)
        state = {name: value.to(dtype) for name, value in plain.items()}
        assert not model.load_state_dict(state, assign=True).missing_keys
        weight = model[0].weight
        assert isinstance(weight, nn.Parameter)
        assert (weight.dtype, weight.requires_grad) == (BF16, False)
        assert (config_of(weight).name, config_of(weight).recompute) == ("0.weight", True)
        assert same(weight.value, state["0.weight"].float())
        assert_quantized(weight.detach(), weight.value)
    assert type(state["0.weight"]) is torch.Tensor, "the caller's state dict is as it was"


def test_to_plain(format):
    """In place: ties, options and names of parameters stay."""
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 64, bias=False))
    model[1].weight, model[2].weight.tag = model[0].weight, "a tag"
    model[2].weight.requires_grad_(False)
    nc.convert(model.to(BF16), format, trainable=True)
    decoded = [quantized(one.weight).dequantize(BF16) for one in model]
    masters = [one.weight.value.to(BF16) for one in model]
    for values, expected in (("master", masters), ("dequantized", decoded)):
        plain = copy.deepcopy(model)
        assert nc.to_plain(plain, values=values) is plain
        assert plain[0].weight is plain[1].weight
        assert [one.weight.requires_grad for one in plain] == [True, True, False]
        assert all(type(one.weight) is nn.Parameter for one in plain)
        assert all(same(one.weight, value) for one, value in zip(plain, expected, strict=True))
        assert nc.to_plain(plain) is plain
        assert plain.state_dict()["0.weight"].dtype == BF16
    assert nc.to_plain(model)[2].weight.tag == "a tag"
    again = nc.convert(model, format, trainable=True).state_dict()
    assert same(again["2.weight"], masters[2].float())
    assert not model.load_state_dict(again, assign=True).missing_keys
    assert isinstance(model[2].weight, nc.MasterWeight)


_WITHOUT_NARROWCAST = """
import sys, torch
print(sorted(torch.load(sys.argv[1], weights_only=True)))
try:
    torch.load(sys.argv[2], weights_only=True)
except Exception as error:
    print(error)
assert "narrowcast" not in sys.modules
"""


def test_loaded_without_narrowcast(tmp_path):
    """A state dict is plain tensors. Weights that were saved themselves need narrowcast, and torch
    says so.
    """
    model = converted(TESTED_FORMATS[0])
    torch.save(model.state_dict(), tmp_path / "state")
    torch.save(dict(model.named_parameters()), tmp_path / "weights")
    command = [sys.executable, "-c", _WITHOUT_NARROWCAST, tmp_path / "state", tmp_path / "weights"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("['0.weight']\n")
    assert re.search(r"narrowcast\.\S+\.?rebuild", done.stdout)
