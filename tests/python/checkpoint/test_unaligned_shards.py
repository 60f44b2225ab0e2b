"""Checkpoints of shards that begin and end within blocks: on other ranks, assigned, frozen."""

import os
import pickle

import pytest
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)

import narrowcast as nc
import ranks
from any_cut_models import assert_whole, build, by_pass, sharded, train


def saved(mesh, format, folder):
    """Three steps and a checkpoint; or what it holds, on other ranks, and a fourth step. All is
    that of one process.
    """
    device = mesh.device_type
    models = sharded(build(format, device), mesh), build(format, device)
    optimizers = [nc.FusedAdam(one.parameters(), lr=1e-2) for one in models]
    if not os.path.exists(f"{folder}/.metadata"):
        train(mesh, models, optimizers, 3)
        dcp.save(states(models[0], optimizers[0]), checkpoint_id=folder)
        return
    train(mesh, models[1:] * 2, optimizers[1:], 3)
    loaded = states(models[0], optimizers[0])
    dcp.load(loaded, checkpoint_id=folder)
    parts = {"model_state_dict": loaded["model"], "optim_state_dict": loaded["optimizer"]}
    set_state_dict(models[0], optimizers[0], **parts)
    assert_whole(*models, *optimizers)
    train(mesh, models, optimizers, 1, first=3)
    assert_whole(*models, *optimizers)


def states(model, optimizer):
    return dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))


def test_checkpoint_on_other_ranks(device, tmp_path):
    for world in (3, 2) if device == "cpu" else (2, 1):
        ranks.run(world, device, saved, by_pass(32), str(tmp_path / "saved"))


def loaded_by_assigning(mesh, format):
    device = mesh.device_type
    models = sharded(build(format, device), mesh), build(format, device)
    for model in models:
        state = {name: value * 1.5 for name, value in model.state_dict().items()}
        model.load_state_dict(state, assign=True)
    assert_whole(*models)
    optimizers = [nc.FusedAdam(one.parameters(), lr=1e-2) for one in models]
    train(mesh, models, optimizers, 1)
    assert_whole(*models, *optimizers)


def test_loaded_by_assigning(device):
    ranks.run(3, device, loaded_by_assigning, by_pass(32))


def frozen_and_loaded(mesh, format):
    """A whole weight's bytes cannot be cut within blocks, nor can a shard's be saved."""
    whole = build(format, mesh.device_type, trainable=False)
    for first_alone in (False, True):
        model = sharded(build(format, mesh.device_type, trainable=False), mesh)
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=first_alone)
        with pytest.raises(ValueError, match=r"weight.* cannot be cut"):
            set_model_state_dict(model, whole.state_dict(), options=options)
    with pytest.raises(ValueError, match=r"no master.*ignore_frozen_params=True"):
        pickle.dumps(model.up.weight.to_local())


@pytest.mark.parametrize("weights", ["mxfp6_e2m3", "nvfp4"])
def test_frozen_and_loaded(weights, device):
    ranks.run(3, device, frozen_and_loaded, weights)
