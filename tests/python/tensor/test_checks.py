"""Checkpoints that were changed: what torch.load(weights_only=True) hands to rebuild is checked
part by part.
"""

import pytest
import torch

import narrowcast as nc
from checkpoints import Changed, load, parts_of, weight_of
from internals import config_of
from models import BUFFERS, assert_same, unit
from narrowcast.tensor import rebuild


def refused(facts, tensors, words, error=ValueError):
    """Refused with those words and the weight's name."""
    with pytest.raises(error, match=words) as caught:
        load(facts, tensors)
    assert repr(facts["name"]) in str(caught.value)


def test_every_tensor_is_checked(format):
    facts, tensors = parts_of(weight_of(format))
    for part, tensor in tensors.items():
        other = torch.float32 if tensor.dtype == torch.uint8 else torch.uint8
        for wrong, words, error in (
            (tensor.to(other), f"{part} is {other}, not {tensor.dtype}", TypeError),
            (tensor.to(torch.complex64), f"{part} is torch.complex64", TypeError),
            (torch.cat([tensor, tensor]), f"{part} has shape .*, not ", ValueError),
            (tensor.unsqueeze(0), f"{part} has shape .*, not ", ValueError),
            (tensor[:0], f"{part} has shape .*, not ", ValueError),
        ):
            refused(facts, {**tensors, part: wrong}, words, error)


def test_tensors_that_are_missing_or_too_many(format):
    weight = weight_of(format)
    facts, tensors = parts_of(weight)
    for one in BUFFERS[:4]:
        rest = {part: tensor for part, tensor in tensors.items() if part != one}
        refused(facts, rest, "keeps one, and it has none|keeps none, and it has one")
    spanning = {part: tensor for part, tensor in tensors.items() if part not in BUFFERS[:4]}
    refused(facts, spanning, "bytes of neither usage")
    f = weight.format
    for part, wanted, like in (
        ("amax", f.tensor_amax, torch.zeros(1)),
        ("history", f.is_delayed, torch.ones(1026)),
    ):
        rest = {one: tensor for one, tensor in tensors.items() if one != part}
        if wanted:
            refused(facts, rest, f"{part}: {format} keeps one, and it has none")
        else:
            refused(facts, {**rest, part: like}, f"{part}: {format} keeps none, and it has one")
    for number in (6, 8):
        arguments = list(Changed(facts, tensors).arguments)
        arguments[3] = [*arguments[3], None][:number]
        with pytest.raises(ValueError, match=f"it has {number} tensors, not 7"):
            rebuild(*arguments)


def test_amaxes_of_infinity(format):
    value = torch.ones(unit(format), unit(format))
    value[0, 0] = float("inf")
    made = nc.quantize(value, format)
    assert_same(load(*parts_of(made)), made)


def test_memory_that_ends_too_soon(format):
    """Kernels look at the memory that they read."""
    facts, tensors = parts_of(weight_of(format))
    freed = tensors["rowwise_data"].clone()
    freed.untyped_storage().resize_(8)
    loaded = rebuild(*Changed(facts, {**tensors, "rowwise_data": freed}).arguments)
    with pytest.raises(ValueError, match=r"rowwise_data .* has been freed: .* 8 bytes"):
        loaded.detach().dequantize()


@pytest.mark.parametrize(
    ("field", "value", "words", "error"),
    [
        ("format", None, "not iterable", TypeError),
        ("dtype", torch.float64, "its dtype is torch.float64, not float32", TypeError),
        ("matmul", "none", 'matmul is "dequantized" or "scaled", not .none.', ValueError),
        ("shape", (96, 64), "has shape", ValueError),
        ("shape", (), "cannot hold a 1x1|has shape", ValueError),
        ("flattened", (64, 65), "has shape|cannot hold", ValueError),
    ],
)
def test_facts_are_checked(format, field, value, words, error):
    facts, tensors = parts_of(weight_of(format))
    refused({**facts, field: value}, tensors, words, error)


def test_an_unknown_format(format):
    facts, tensors = parts_of(weight_of(format))
    refused({**facts, "format": format + "_"}, tensors, "there is no format")


def test_scaled_products_of_a_format_without(format):
    facts, tensors = parts_of(weight_of(format))
    facts["matmul"] = "scaled"
    if nc.format(format).matmul is None:
        refused(facts, tensors, f"{format} names no formats for activations")
    else:
        assert config_of(load(facts, tensors)).matmul == "scaled"


def test_flat_views(format):
    flat = weight_of(format).detach().view(-1)
    facts, tensors = parts_of(flat)
    assert load(facts, tensors).is_flat
