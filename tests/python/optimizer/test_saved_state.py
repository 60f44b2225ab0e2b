"""State dicts that were changed: FusedAdam takes what it can go on with, and checks all before
anything changes.
"""

import copy

import pytest
import torch
from torch import nn

import narrowcast as nc
from models import build, same, train


def trained(format):
    model = build(format)
    optimizer = nc.FusedAdam(model.parameters(), lr=1e-2)
    train(model, optimizer, 1)
    return optimizer


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda value: None, "is a NoneType|step in the state dict is of type NoneType"),
        (lambda value: "1", "is a str|step in the state dict is of type str"),
        (lambda value: [1.0], "is a list|step in the state dict is of type list"),
        (lambda value: nc.quantize(torch.ones(64, 64), "mxfp8_e4m3"), "is a Quant|step has shape"),
        (lambda value: value.unsqueeze(0), "has shape"),
        (torch.Tensor.cfloat, "complex"),
    ],
)
def test_values_that_cannot_be_read(format, change, words):
    """Each is found before anything changes."""
    optimizer = trained(format)
    before = copy.deepcopy(optimizer.state_dict())
    for key, value in before["state"][0].items():
        saved = copy.deepcopy(before)
        saved["state"][0][key] = change(value)
        saved["state"][1]["exp_avg"].fill_(7.0)
        with pytest.raises((ValueError, TypeError), match=words) as caught:
            optimizer.load_state_dict(saved)
        assert key in str(caught.value)
        after = optimizer.state_dict()["state"]
        assert all(same(after[0][one], kept) for one, kept in before["state"][0].items())
        assert same(after[1]["exp_avg"], before["state"][1]["exp_avg"])


def test_steps_beyond_64_bits():
    optimizer = trained("mxfp8_e4m3")
    for step in (2**63, 2**80, torch.tensor(1e30), float("inf"), float("nan")):
        saved = copy.deepcopy(optimizer.state_dict())
        saved["state"][0]["step"] = step
        with pytest.raises(ValueError, match="steps are counted from 0 to"):
            optimizer.load_state_dict(saved)


def test_dtypes():
    optimizer = trained("mxfp8_e4m3")
    for key, value, words in (
        ("master", torch.Tensor.bfloat16, "master is torch.bfloat16 .*, not torch.float32"),
        ("exp_avg", torch.Tensor.double, "exp_avg is torch.float64 .*, and moments are float32 or"),
    ):
        saved = copy.deepcopy(optimizer.state_dict())
        state = next(one for one in saved["state"].values() if "master" in one)
        state[key] = value(state[key])
        with pytest.raises(ValueError, match=words):
            optimizer.load_state_dict(saved)


@pytest.mark.parametrize(
    ("saved", "words"),
    [
        (None, "the state dict is of type NoneType, not dict"),
        ({}, "the state dict has no 'state'"),
        ({"state": {}}, "the state dict has no 'param_groups', only .'state'."),
        ({"state": [], "param_groups": []}, "'state' of the state dict is of type list, not dict"),
        ({"state": {}, "param_groups": [None]}, "group 0 of the state dict is of type NoneType"),
        ({"state": {}, "param_groups": [{}]}, "'params' of group 0 of the state dict is of type"),
        ({"state": {}, "param_groups": [{"params": [[]]}]}, "a parameter of group 0 .* type list"),
        ({"state": {0: 5}, "param_groups": [{"params": [0]}]}, "one.weight: its state .* type int"),
    ],
)
def test_what_is_no_state_dict(saved, words):
    optimizer = nc.FusedAdam([("one.weight", nn.Parameter(torch.ones(8)))])
    with pytest.raises((TypeError, ValueError), match=words):
        optimizer.load_state_dict(saved)
