"""Full state dicts of frozen weights: their bytes, or what they decode to."""

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.fsdp import fully_shard

import narrowcast as nc
import ranks
from models import (
    BUFFERS,
    STORAGES,
    assert_quantized,
    assert_same,
    local_rows,
    one_of_each,
    same,
    unit,
)

SHARDED = one_of_each(lambda f: (f.gather, f.tensor_amax))


def two_layers(format, seed, trainable=None):
    """The second is plain, so that torch has several tensors to send."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 2 * unit(format), bias=False), nn.Linear(unit(format), 64))
    model[0].weight.requires_grad_(False)
    return nc.convert(model, format, filter="0", trainable=trainable)


def load_bytes(mesh, format, options):
    """The state dict of a whole model has the weight's bytes, of which all ranks get theirs."""
    whole, model = two_layers(format, 0), fully_shard(two_layers(format, 1), mesh=mesh)
    is_first = mesh.get_rank() == 0
    state = whole.state_dict() if is_first or not options.broadcast_from_rank0 else {}
    assert set_model_state_dict(model, state, options=options) == ([], [])
    part = local_rows(whole[0].weight.detach(), model[0].weight, mesh)
    local = model[0].weight.to_local()
    names = [name for name in BUFFERS if getattr(local, name) is not None]
    assert_same(local, part, names, format)
    assert same(model[1].weight.full_tensor(), whole[1].weight)


def load_values(mesh, format, options):
    """That of a sharded one has decoded values, which are quantized anew."""
    source = fully_shard(two_layers(format, 0), mesh=mesh)
    state = get_model_state_dict(source, options=StateDictOptions(full_state_dict=True))
    value = two_layers(format, 0)[0].weight.dequantize()
    assert same(state["0.weight"], value)
    model = fully_shard(two_layers(format, 1), mesh=mesh)
    if options.broadcast_from_rank0 and mesh.get_rank() > 0:
        state = {}
    if nc.format(format).tensor_amax:
        with pytest.raises((RuntimeError, NotImplementedError), match=r"before nc\.convert"):
            set_model_state_dict(model, state, options=options)
        return
    set_model_state_dict(model, state, options=options)
    local, expected = model[0].weight.to_local(), local_rows(value, model[0].weight, mesh)
    assert_quantized(local, expected)
    if nc.format(format).rowwise.scale_bytes == 1:  # a power of two
        assert same(local.dequantize(), expected)
    else:
        torch.testing.assert_close(local.dequantize(), expected, rtol=1e-6, atol=0)


def load_into_values(mesh, format, options):
    """The bytes of a frozen weight into one in training: its decoded value."""
    whole = two_layers(format, 0)
    model = fully_shard(two_layers(format, 1, trainable=True), mesh=mesh)
    set_model_state_dict(model, whole.state_dict() if mesh.get_rank() == 0 else {}, options=options)
    value = model.state_dict()["0.weight"].full_tensor()
    assert same(value, whole[0].weight.dequantize())


@ranks.on(2, "cpu")
def test_full_state_dicts(mesh):
    broadcast = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    for format in STORAGES:
        for options in (StateDictOptions(full_state_dict=True), broadcast):
            load_bytes(mesh, format, options)
            load_values(mesh, format, options)
    load_into_values(mesh, SHARDED[0], broadcast)
