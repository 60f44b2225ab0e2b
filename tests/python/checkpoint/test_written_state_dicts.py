"""What is written to values of a sharded model's state dict is the weight's, as with plain weights:
DTensors, of which torch counts the writes apart.
"""

import itertools

import pytest
import torch

import ranks
from models import FEW, same
from written_models import assert_whole, expected_forward, forward, model_for

TESTED_FORMATS = FEW
WAYS = {
    "zero_": lambda value: value.zero_(),
    "of what is detached": lambda value: value.detach().mul_(3),
    "copy_": lambda value: value.copy_(value * 3),
    "lerp_": lambda value: value.lerp_(value * 3, 0.5),
    "foreach of the local part": lambda value: torch._foreach_mul_([value.to_local()], 3.0),
    "of the local part": lambda value: value.to_local().mul_(3),
}


CASES = [*itertools.product(WAYS, (False, True), (False,)), ("zero_", True, True)]


@pytest.mark.parametrize(("way", "ran", "inference"), CASES)
@ranks.on(2)
def test_values_of_a_model(mesh, format, way, ran, inference):
    """`ran`: once before; `inference`: written in inference mode."""
    model = model_for(mesh, format)
    before = forward(model, mesh) if ran else None
    value = model.state_dict()["blocks.1.up.weight"]
    with torch.inference_mode(inference), torch.no_grad():
        WAYS[way](value)
    got = forward(model, mesh)
    assert before is None or not same(got, before)
    assert same(got, expected_forward(mesh, model))
    assert_whole(mesh, model)
    with torch.no_grad():
        WAYS[way](value)  # a value that was handed out before the last forward
    assert same(forward(model, mesh), expected_forward(mesh, model))
