"""A training in distributed checkpoints: what is saved, and how another model goes on from it."""

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict


def states_of(model, optimizer):
    return dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))


def resume(model, optimizer, folder, group):
    """Loads what any number of ranks have saved, into the ranks of a group."""
    states = states_of(model, optimizer)
    dcp.load(states, checkpoint_id=folder, process_group=group)
    loaded = {"model_state_dict": states["model"], "optim_state_dict": states["optimizer"]}
    set_state_dict(model, optimizer, **loaded)
