"""State dicts of sharded models and optimizers, torch.distributed's and their own: what is loaded
is what was saved, to the bit.
"""

import io

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import fully_shard

import narrowcast as nc
import ranks
from models import GATHERS, assert_equal, build, loss_of, same, shard
from narrowcast.fsdp import torch_names
from sharded_states import go_on, trained
from weights import value_of

TESTED_FORMATS = GATHERS


def assert_loaded(saved, loaded, device):
    """A model and its optimizer are what was saved: in losses, weights and state, and in what
    follows from them.
    """
    with torch.no_grad():
        assert same(*(loss_of(model, 9, device) for model, _ in (saved, loaded)))
    assert_equal(saved, loaded)
    go_on([saved, loaded], device)


CASES = [(1, False, False), (2, False, True), (2, True, False)]


@pytest.mark.parametrize(("world", "full", "cpu_offload"), CASES)
@ranks.on("world")
def test_state_dicts(mesh, format, full, cpu_offload):
    """From one model and optimizer into others that have seen other data."""
    device = mesh.device_type
    options = StateDictOptions(full_state_dict=full, cpu_offload=cpu_offload)
    model, optimizer = trained(mesh, format)
    weights = get_model_state_dict(model, options=options)
    state = get_optimizer_state_dict(model, optimizer, options=options)
    other, other_optimizer = trained(mesh, format, seed=3)
    set_model_state_dict(other, weights, options=StateDictOptions(full_state_dict=full))
    set_optimizer_state_dict(
        other, other_optimizer, state, options=StateDictOptions(full_state_dict=full)
    )
    assert_loaded((model, optimizer), (other, other_optimizer), device)


@ranks.on(2)
def test_full_state_dicts_from_the_first_rank(mesh, format):
    """Only the first rank has the full state dict."""
    device = mesh.device_type
    model, optimizer = trained(mesh, format)
    full = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights = get_model_state_dict(model, options=full)
    state = get_optimizer_state_dict(model, optimizer, options=full)
    other, other_optimizer = trained(mesh, format, seed=3)
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    first = mesh.get_rank() == 0
    set_model_state_dict(other, weights if first else {}, options=options)
    set_optimizer_state_dict(other, other_optimizer, state if first else {}, options=options)
    go_on([(model, optimizer), (other, other_optimizer)], device)


def look_ups(mesh, format, layers):
    """How many of FSDP2's parameters are looked at while a model of so many weights is converted,
    and while its state dict is made.
    """
    looked, every = 0, torch_names._parameters

    def counted():
        nonlocal looked
        for one in every():
            looked += 1
            yield one

    model = nn.Sequential(*(nn.Linear(32, 32, bias=False) for _ in range(layers)))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    torch_names._parameters, counts = counted, []
    try:
        for call in (lambda: nc.convert(model, format), model.state_dict):
            before = looked
            call()
            counts.append(looked - before)
    finally:
        torch_names._parameters = every
    return counts


def test_look_ups_grow_with_the_model():
    few, many = (ranks.run(2, "cpu", look_ups, "mxfp8_e4m3", layers)[0] for layers in (8, 32))
    assert few[0] > 0, "nothing was counted"
    assert all(b <= 4 * a for a, b in zip(few, many, strict=True)), (few, many)


@pytest.mark.parametrize("world", [1, 2])
@ranks.on("world")
def test_state_dict_methods(mesh, format):
    """state_dict and load_state_dict themselves, before and after the first forward."""
    device = mesh.device_type
    model, optimizer = trained(mesh, format)
    weights, state = model.state_dict(), optimizer.state_dict()
    late = trained(mesh, format, seed=3)
    early = shard(build(format, device, seed=4), mesh)
    early = early, nc.FusedAdam(early.parameters(), lr=1e-2)
    for other, other_optimizer in (early, late):
        other.load_state_dict(weights)
        other_optimizer.load_state_dict(state)
        with torch.no_grad():
            loss_of(other, 9, device)
        assert_equal((model, optimizer), (other, other_optimizer))
    go_on([early, late], device)


@ranks.on(2, "cpu")
def test_saved_shards(mesh, format):
    """torch.save of a rank's own weights, and torch.load with weights_only=True."""
    model, _ = trained(mesh, format)
    file = io.BytesIO()
    model.reshard()
    local = {name: p.detach().to_local() for name, p in model.named_parameters()}
    torch.save(local, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    for name, parameter in model.named_parameters():
        assert type(loaded[name]) is torch.Tensor  # because it is no parameter
        assert same(loaded[name], value_of(parameter)), name
