"""Frozen shards that begin and end within blocks, and state dicts."""

import pickle

import pytest
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

import ranks
from any_cut_models import build, sharded


@pytest.mark.parametrize("weights", ["mxfp6_e2m3", "nvfp4"])
@ranks.on(3)
def test_frozen_and_loaded(mesh, weights):
    """A whole weight's bytes cannot be cut within blocks, nor can a shard's be saved."""
    whole = build(weights, mesh.device_type, trainable=False)
    for first_alone in (False, True):
        model = sharded(build(weights, mesh.device_type, trainable=False), mesh)
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=first_alone)
        with pytest.raises(ValueError, match=r"weight.* cannot be cut"):
            set_model_state_dict(model, whole.state_dict(), options=options)
    with pytest.raises(ValueError, match=r"ignore_frozen_params=True"):
        pickle.dumps(model.up.weight.to_local())
