"""Checkpoints that were changed: what torch.load(weights_only=True) hands to rebuild is checked
part by part.
"""

import pytest
import torch
from torch import nn

import narrowcast as nc
from checkpoints import Changed, load, parts_of, weight_of
from internals import config_of
from models import BUFFERS, assert_same, unit
from narrowcast.tensor import rebuild


def refused(facts, tensors, words, error=ValueError):
    """Refused with those words and the weight's name: from a checkpoint, and when called."""
    for attempt in (load, lambda *parts: rebuild(*Changed(*parts).arguments)):
        with pytest.raises(error, match=words) as caught:
            attempt(facts, tensors)
        assert repr(facts["name"]) in str(caught.value) or type(facts["name"]) is not str


# ---- tensors ----


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_every_tensor_is_checked(format):
    facts, tensors = parts_of(weight_of(format))
    for part, tensor in tensors.items():
        other = torch.float32 if tensor.dtype == torch.uint8 else torch.uint8
        expanded = tensor.new_ones(()).expand(tensor.shape)
        for wrong, words, error in (
            (tensor.to(other), f"{part} is {other}, not {tensor.dtype}", TypeError),
            (tensor.to(torch.complex64), f"{part} is torch.complex64", TypeError),
            (torch.cat([tensor, tensor]), f"{part} has shape .*, not ", ValueError),
            (tensor.unsqueeze(0), f"{part} has shape .*, not ", ValueError),
            (tensor[:0], f"{part} has shape .*, not ", ValueError),
            (tensor.to("meta"), "is on (meta|cpu), and .* on (meta|cpu)", ValueError),
            (tensor.to_sparse(), f"{part} is torch.sparse_coo, not dense", ValueError),
            (tensor.tolist(), f"{part} is of type list, not torch.Tensor", TypeError),
            (nn.Parameter(tensor, requires_grad=False), f"{part} is of type Parameter", TypeError),
            (weight_of(format), f"{part} is of type QuantizedTensor", TypeError),
        ):
            refused(facts, {**tensors, part: wrong}, words, error)
        if tensor.numel() > 1:
            words = f"{part} has elements that share memory"
            refused(facts, {**tensors, part: expanded}, words)
        if tensor.dtype == torch.float32:
            words = f"{part} requires a gradient"
            refused(facts, {**tensors, part: tensor.clone().requires_grad_()}, words)


def test_tensors_that_are_missing_or_too_many(format):
    weight = weight_of(format)
    facts, tensors = parts_of(weight)
    for one in BUFFERS[:4]:
        usage = one.split("_")[0]
        rest = {part: tensor for part, tensor in tensors.items() if part != one}
        refused(facts, rest, rf"it has {usage}_\w+ and no {one}")
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


def test_amaxes_that_no_cast_makes(format):
    facts, tensors = parts_of(weight_of(format))
    for part in ("amax", "history"):
        for wrong in (float("nan"), -1.0, -0.0, -float("inf")):
            if part in tensors:
                changed = tensors[part].clone()
                changed[-1] = wrong
                words = f"{part} has negative numbers or NaN"
                refused(facts, {**tensors, part: changed}, words)
    for index in (0, 1):
        for wrong in (0.0, float("inf")):
            if "history" in tensors:
                changed = tensors["history"].clone()
                changed[index] = wrong
                refused(facts, {**tensors, "history": changed}, "multipliers of encoding are posit")


def test_amaxes_of_infinity(format):
    value = torch.ones(unit(format), unit(format))
    value[0, 0] = float("inf")
    made = nc.quantize(value, format)
    assert_same(load(*parts_of(made)), made)


def test_memory_in_common(format):
    facts, tensors = parts_of(weight_of(format))
    tensors["rowwise_data"] = tensors["rowwise_data"].clone()
    data = tensors["rowwise_data"]
    if tensors["columnwise_data"].numel() == data.numel():
        shape = tensors["columnwise_data"].shape
        shared = {**tensors, "columnwise_data": data.view(shape)}
        refused(facts, shared, "rowwise_data and columnwise_data share memory|columnwise_data and")
    # As in a gather: side by side in one storage, which torch.save takes of one dtype alone.
    scale = tensors["rowwise_scale_inv"]
    begin, size = -(-data.numel() // 16) * 16, scale.numel() * scale.itemsize
    arena = torch.zeros(begin + size, dtype=torch.uint8)

    def rebuilt(first):
        placed = arena[first : first + size].view(scale.dtype).view(scale.shape)
        at = {"rowwise_data": arena[: data.numel()].view(data.shape), "rowwise_scale_inv": placed}
        return rebuild(*Changed(facts, {**tensors, **at}).arguments)

    rebuilt(begin)
    with pytest.raises(ValueError, match="rowwise_data and rowwise_scale_inv share memory"):
        rebuilt(begin - 16)


def test_memory_that_ends_too_soon(format):
    facts, tensors = parts_of(weight_of(format))
    freed = tensors["rowwise_data"].clone()
    freed.untyped_storage().resize_(8)
    arguments = Changed(facts, {**tensors, "rowwise_data": freed}).arguments
    with pytest.raises(ValueError, match=r"rowwise_data takes bytes 0 to \d+ of a storage of 8"):
        rebuild(*arguments)


def test_signs_that_torch_has_put_off(format):
    facts, tensors = parts_of(weight_of(format))
    put_off = torch._neg_view(tensors["master"])
    refused(facts, {**tensors, "master": put_off}, "master has values that its memory does not")


def test_memory_that_changes_after_the_checks(format):
    """A file may name a tensor, hand it to rebuild and then put it over other memory."""
    weight = weight_of(format)
    facts, tensors = parts_of(weight)
    tensors["rowwise_data"] = tensors["rowwise_data"].clone()
    loaded = rebuild(*Changed(facts, tensors).arguments)
    tensors["rowwise_data"].set_(torch.zeros(1, dtype=torch.uint8))
    assert_same(loaded, weight)


# ---- facts ----


@pytest.mark.parametrize(
    ("field", "value", "words", "error"),
    [
        ("format", b"nvfp4", "its format is of type bytes, not str", TypeError),
        ("format", None, "its format is of type NoneType, not str", TypeError),
        ("dtype", torch.float64, "its dtype is torch.float64, not float32", TypeError),
        ("dtype", "float32", "its dtype is of type str, not dtype", TypeError),
        ("name", 5, "its name is of type int, not str or None", TypeError),
        ("recompute", 1, "its recompute is of type int, not bool", TypeError),
        ("partial", None, "its partial is of type NoneType, not bool", TypeError),
        ("requires_grad", "yes", "its requires_grad is of type str, not bool", TypeError),
        ("is_parameter", 0, "its is_parameter is of type int, not bool", TypeError),
        ("matmul", "none", 'matmul is "dequantized" or "scaled", not .none.', ValueError),
        ("matmul", None, "its matmul is of type NoneType, not str", TypeError),
        ("shape", [64, 64], "its shape is of type list, not tuple", TypeError),
        ("shape", 64, "its shape is of type int, not tuple", TypeError),
        ("shape", (64.0, 64), "its size 0 of shape is of type float, not int", TypeError),
        ("shape", (64, True), "its size 1 of shape is of type bool, not int", TypeError),
        ("shape", (-64, -64), "size 0 of its shape is -64, not 0 to", ValueError),
        ("shape", (2**80, 1), "size 0 of its shape is a number of 81 bits", ValueError),
        ("shape", (2**2000, 1), "size 0 of its shape is a number of 2001 bits", ValueError),
        ("shape", (2**40, 0, 2**40), "has more than 2.48 elements", ValueError),
        ("shape", (96, 64), "has shape", ValueError),
        ("shape", (), "cannot hold a 1x1|has shape", ValueError),
        ("flattened", (64, 64), r"is no flat view of a matrix \(64, 64\)", ValueError),
        ("flattened", 64, "its flattened matrix is of type int, not tuple", TypeError),
        ("flattened", (64, None), "size 1 of flattened matrix is of type NoneType", TypeError),
        ("flattened", (-1, -8192), "size 0 of its flattened matrix is -1", ValueError),
    ],
)
def test_facts_are_checked(format, field, value, words, error):
    facts, tensors = parts_of(weight_of(format))
    refused({**facts, field: value}, tensors, words, error)


def test_an_unknown_format(format):
    facts, tensors = parts_of(weight_of(format))
    with pytest.raises(ValueError, match="there is no format"):
        load({**facts, "format": format + "_"}, tensors)


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
    rows, columns = facts["flattened"]
    for wrong in ((1, rows * columns), (rows, columns, 1), (rows, columns + 1)):
        refused({**facts, "flattened": wrong}, tensors, "is no flat view of a matrix")
