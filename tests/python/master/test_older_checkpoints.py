"""Optimizer states of older checkpoints, which have masters of weights that are their own now."""

import copy

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import state_dict as dcp_state
from torch.distributed.fsdp import fully_shard

import narrowcast as nc
import ranks
from by_hand import converted, plain, same, train, value_of, values
from narrowcast.tensor import dtensors

TESTED_FORMATS = ["nvfp4", "fp8_e4m3_delayed"]
SIZES = (96, 100, 4)  # cuts divide blocks, and a rank has no rows
FULL = dcp_state.StateDictOptions(full_state_dict=True)
IGNORED = "masters of 5 weights"


def _trained(format, seed=0, shard=lambda model: model):
    model = shard(converted(format, *SIZES, seed=seed))
    optimizer = nc.FusedAdam(model.parameters(), 1e-2)
    train(model, [optimizer], 2, width=SIZES[0])
    return model, optimizer


def _is_own_master(parameter):
    return isinstance(dtensors.local_of(parameter), nc.MasterWeight)


def _older(model, states):
    """The states of parameters, in their order, with masters."""
    for state, parameter in zip(states.values(), model.parameters(), strict=True):
        if _is_own_master(parameter):
            local = value_of(dtensors.local_of(parameter)).clone()
            state["master"] = dtensors.like(parameter, local)


def _older_of(model, optimizer):
    state = copy.deepcopy(optimizer.state_dict())
    _older(model, state["state"])
    return state


@torch.no_grad()
def _copy_others(to, model):
    """What no optimizer has ever had masters of."""
    for mine, other in zip(to.parameters(), model.parameters(), strict=True):
        if not _is_own_master(other):
            mine.copy_(other)


def _goes_on_alike(one, other):
    losses = [train(m, [o], 2, first=2, width=SIZES[0]) for m, o in (one, other)]
    assert losses[0] == losses[1]


def test_the_master_is_the_value_of_a_model_that_was_not_loaded(format, recwarn):
    one, other = _trained(format), _trained(format, seed=3)
    _copy_others(other[0], one[0])
    assert not same(values(other[0]), values(one[0]))
    other[1].load_state_dict(_older_of(*one))
    assert not recwarn
    assert same(values(other[0]), values(one[0]))
    if not nc.format(format).is_delayed:  # whose bytes follow the present amax after a load
        _goes_on_alike(one, other)


@pytest.mark.parametrize("assign", [False, True])
def test_a_model_that_was_loaded_keeps_its_values(assign):
    """Of the state dict or of a copy of the model; the moments are the optimizer's."""
    one, other = _trained("nvfp4"), _trained("nvfp4", seed=3)
    given = plain(*SIZES, seed=4).state_dict()
    other[0].load_state_dict({key: one.clone() for key, one in given.items()}, assign=assign)
    model = copy.deepcopy(other[0])
    optimizer = nc.FusedAdam(model.parameters(), 1e-2)
    with pytest.warns(UserWarning, match=IGNORED) as caught:
        optimizer.load_state_dict(_older_of(*one))
    assert len(caught) == 1
    assert same(values(model), given)
    moments = [[s["exp_avg"] for s in each.state.values()] for each in (one[1], optimizer)]
    assert all(map(torch.equal, *moments))


def test_the_history_of_a_model_that_was_loaded_goes_on():
    one, other = _trained("fp8_e4m3_delayed"), _trained("fp8_e4m3_delayed", seed=3)
    other[0].load_state_dict(one[0].state_dict())
    older = _older_of(*one)
    with pytest.warns(UserWarning, match=IGNORED):
        other[1].load_state_dict(older)
    histories = [
        [state["history"] for state in each["state"].values() if "history" in state]
        for each in (older, other[1].state_dict())
    ]
    assert len(histories[0]) == 5
    assert all(map(torch.equal, *histories))


def test_a_master_of_another_shape_changes_nothing():
    model, optimizer = _trained("nvfp4")
    state, before = _older_of(model, optimizer), values(model)
    state["state"][0]["master"] = torch.zeros(3, 3)
    with pytest.raises(ValueError, match="master has shape"):
        optimizer.load_state_dict(state)
    assert same(values(model), before)


@ranks.on(3, "cpu")
def test_sharded_weights(mesh, tmp_path, format="nvfp4"):
    def shard(model):
        for block in model[:-1]:
            fully_shard(block, mesh=mesh)
        return fully_shard(model, mesh=mesh)

    def whole(model):
        model.reshard()
        full = {name: one.detach().full_tensor() for name, one in model.named_parameters()}
        return {name: value_of(one) for name, one in full.items()}

    one = _trained(format, shard=shard)
    expected = whole(one[0])
    # Of this rank's own.
    other = _trained(format, 3, shard)
    _copy_others(other[0], one[0])
    other[1].load_state_dict(_older_of(*one))
    assert same(whole(other[0]), expected)
    # A checkpoint that is loaded into what is there.
    states = dict(zip(("model", "optimizer"), dcp_state.get_state_dict(*one), strict=True))
    _older(one[0], states["optimizer"]["state"])
    dcp.save(states, checkpoint_id=tmp_path)
    other = _trained(format, 4, shard)
    states = dict(zip(("model", "optimizer"), dcp_state.get_state_dict(*other), strict=True))
    dcp.load(states, checkpoint_id=tmp_path)
    dcp_state.set_state_dict(
        *other, model_state_dict=states["model"], optim_state_dict=states["optimizer"]
    )
    assert same(whole(other[0]), expected)
    # Whole tensors.
    state = dcp_state.get_optimizer_state_dict(*one, options=FULL)
    for name, value in expected.items():
        if "bias" not in name:
            state["state"][name]["master"] = value
    fresh = _trained(format, 5, shard)
    with pytest.raises(ValueError, match="Load the model's state dict first"):
        dcp_state.set_optimizer_state_dict(*fresh, state, options=FULL)
    dcp_state.set_model_state_dict(fresh[0], dict(expected), options=FULL)
    with pytest.warns(UserWarning, match=IGNORED):
        dcp_state.set_optimizer_state_dict(*fresh, state, options=FULL)
    assert same(whole(fresh[0]), expected)
    losses = [train(m, [o], 2, first=2, width=SIZES[0]) for m, o in (one, other, fresh)]
    assert losses[0] == losses[1] == losses[2]
