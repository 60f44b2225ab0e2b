"""A training in distributed checkpoints: what is saved, and how another model goes on from it."""

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    get_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)

FULL = StateDictOptions(full_state_dict=True)


def states_of(model, optimizer):
    return dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))


def resume(model, optimizer, folder, group):
    """Loads what any number of ranks have saved, into the ranks of a group."""
    states = states_of(model, optimizer)
    dcp.load(states, checkpoint_id=folder, process_group=group)
    loaded = {"model_state_dict": states["model"], "optim_state_dict": states["optimizer"]}
    set_state_dict(model, optimizer, **loaded)


def hand_over_full_state(model, optimizer, other, other_optimizer):
    """Loads an optimizer's full state dict into another one."""
    state = get_optimizer_state_dict(model, optimizer, options=FULL)
    set_optimizer_state_dict(other, other_optimizer, state, options=FULL)
