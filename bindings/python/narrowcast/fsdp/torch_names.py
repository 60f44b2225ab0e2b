"""Every private name of FSDP2 that narrowcast uses (torch 2.11), each for a question that nothing
public answers. A `parameter` is an FSDPParam, a `group` an FSDPParamGroup.
"""

import sys
from collections.abc import Iterator

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_common import TrainingState

_TORCH = "2.11"
if not torch.__version__.startswith(_TORCH + "."):
    raise ImportError(
        f"narrowcast uses private names of FSDP2 and was written for torch {_TORCH}; this is "
        f"torch {torch.__version__}"
    )


def _parameters() -> Iterator[tuple]:
    """Every FSDPParam, with the FSDPState whose group has it: a shard does not know whose it is."""
    from torch.distributed._composable_state import _module_state_mapping
    from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState

    for reference in list(_module_state_mapping.values()):
        state = reference()
        if isinstance(state, FSDPState) and state._fsdp_param_group is not None:
            for parameter in state._fsdp_param_group.fsdp_params:
                yield state, parameter


def group_of(state):
    return state._fsdp_param_group


def tree_of(state):
    """What the states of one module tree share."""
    return state._state_ctx


def states_of_tree(state) -> list:
    """The states with a group of the module tree that a state belongs to, in one order on all
    ranks; before the first forward, which finds the tree, the state alone.
    """
    every = tree_of(state).all_states or [state]
    return [one for one in every if group_of(one) is not None]


def groups_of_tree(state) -> list:
    """The groups of those states."""
    return [group_of(one) for one in states_of_tree(state)]


def quantized(group) -> list[tuple]:
    """The quantized parameters of a group, each with the store of its shard."""
    every = ((parameter, store_of(parameter)) for parameter in group.fsdp_params)
    return [(parameter, store) for parameter, store in every if store is not None]


def forward_root(state):
    """The state of the outermost module whose forward runs; None outside of any."""
    return state._state_ctx.iter_forward_root


def sharded(parameter) -> torch.Tensor:
    """The DTensor of all shards."""
    return parameter.sharded_param


def local_tensor(parameter) -> torch.Tensor:
    """The shard that the hooks are called on."""
    return sharded(parameter)._local_tensor


def store_of(parameter):
    """The store of a shard; None if it is not quantized."""
    view = getattr(local_tensor(parameter), "_view", None)
    return None if view is None else view.store


def find(tensor: torch.Tensor):
    """The state whose group holds a shard; None if no group does."""
    found = (state for state, parameter in _parameters() if local_tensor(parameter) is tensor)
    return next(found, None)


def managed(parameter: torch.Tensor):
    """The group and the FSDPParam of a sharded parameter; (None, None) if there is none."""
    for state, candidate in _parameters():
        if sharded(candidate) is parameter:
            return group_of(state), candidate
    return None, None


def whole_shape(parameter) -> torch.Size:
    return parameter._orig_size


def shard_rows(parameter) -> int:
    """Of the first rank's shard, as a matrix."""
    return parameter.padded_sharded_param_size[:-1].numel()


def world(parameter) -> int:
    """The number of shards; replicate() makes one."""
    return getattr(parameter.mesh_info, "shard_mesh_size", 1)


def drop_padding(parameter) -> None:
    """Lets go of the padded copy of a short shard, which only gathers without hooks read."""
    parameter._sharded_param_data = local_tensor(parameter).view(-1)


def is_kept(state) -> bool:
    """Whether the forward's gather may serve the backward too. Before the first forward nobody
    knows the root, which by default is kept.
    """
    undecided = state._is_root is None and state._auto_reshard_after_forward
    return undecided or not group_of(state)._reshard_after_forward


def is_backward(group) -> bool:
    """Whether a gather is the backward's, as far as FSDP2 tells: a recomputation looks like the
    backward that it is part of.
    """
    return group._training_state == TrainingState.PRE_BACKWARD


def is_asked_for(group) -> bool:
    """Whether a gather is that of unshard(), outside of any forward and backward."""
    return group._training_state == TrainingState.IDLE


def reshards_to_smaller_mesh(group) -> bool:
    return group._use_post_forward_mesh


def replace_shard(group, parameter, local: torch.Tensor) -> None:
    """Puts another local tensor in the place of a shard, and has FSDP2 look at it as if for the
    first time.
    """
    group._to_sharded()
    parameter.sharded_param._local_tensor = local
    parameter.reset_sharded_param()
    parameter._init_extensions()
    parameter.all_gather_outputs = []
    if hasattr(parameter, "_unsharded_param"):
        del parameter._unsharded_param


def reshard_all(modules) -> None:
    """Registers the sharded parameters of all FSDP modules among these."""
    for module in modules:
        if isinstance(module, FSDPModule):
            module.reshard()


def is_sharding() -> bool:
    """Whether fully_shard is calling: it cuts a weight with torch.chunk, as users do, and says to
    nobody along which dimension.
    """
    return _is_called_by("torch.distributed.fsdp.")


def is_parallelizing() -> bool:
    """Whether parallelize_module is calling, which cuts a weight in the same way."""
    return _is_called_by("torch.distributed.tensor.parallel.")


def _is_called_by(package: str) -> bool:
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith(package):
            return True
        frame = frame.f_back
    return False
