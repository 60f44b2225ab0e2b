"""Every private name of FSDP2 that narrowcast reads, each for a question that nothing public
answers; those that it overrides are in torch_parameters, those that it replaces in
conversion.torch_hooks. A `parameter` is an FSDPParam; a `group` an FSDPParamGroup, what is gathered
together.

Most are the same in all versions of torch that narrowcast works with. What differs:

    torch      groups of a module's state           states of a module tree
    2.11       _fsdp_param_group, one or None       all_states, one for each module
    2.12 on    _fsdp_param_groups, one a mesh       all_states, each once
"""

import operator
import weakref
from collections.abc import Iterator

import torch
from torch.distributed._composable_state import _get_module_state, _module_state_mapping
from torch.distributed.fsdp._fully_shard._fsdp_common import TrainingState
from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState
from torch.distributed.tensor import DTensor

from narrowcast import torch_version

# The shard of a parameter, that the hooks are called on.
local_tensor = operator.attrgetter("sharded_param._local_tensor")
_HAS_ONE_GROUP = torch_version.series(torch.__version__) < (2, 12)


def _groups(state) -> list:
    """The groups of a module's FSDPState."""
    if _HAS_ONE_GROUP:
        return [] if state._fsdp_param_group is None else [state._fsdp_param_group]
    return state._fsdp_param_groups


def _state(group):
    """The FSDPState that a group belongs to."""
    return _get_module_state(group.modules[0])


def training_state(group) -> dict:
    """Where _C.GatherGroup sees, whenever a gather begins, what is_backward() says."""
    return {
        "group": weakref.ref(group),
        "state": "_training_state",
        "pre_backward": TrainingState.PRE_BACKWARD,
    }


def _parameters() -> Iterator[tuple]:
    """Every FSDPParam of the process, each with its group: a shard has no reference to either."""
    for reference in list(_module_state_mapping.values()):
        state = reference()
        for group in _groups(state) if isinstance(state, FSDPState) else ():
            for parameter in group.fsdp_params:
                yield group, parameter


def _states(group) -> list:
    """The states of a group's module tree, in one order on all ranks; before the first forward,
    which finds the tree, the state of the group's own module.
    """
    state = _state(group)
    return [*state._state_ctx.all_states] or [state]


def groups_of_tree(group) -> list:
    return list(dict.fromkeys(one for state in _states(group) for one in _groups(state)))


def sharded(parameter) -> torch.Tensor:
    """The DTensor of all shards."""
    return parameter.sharded_param


def group_of(parameter):
    """By the FSDPParam, because models may have a sharded parameter in common after a load."""
    return next(group for group, one in _parameters() if one is parameter)


_managed: dict[int, tuple] = {}  # by id of a sharded parameter: weak references


def managed(parameter: torch.Tensor):
    """The group and the FSDPParam of a sharded parameter; (None, None) if there is none. Looked up
    in a dict, which is made anew if it does not know the parameter.
    """
    if not isinstance(parameter, DTensor):
        return None, None
    if not (found := _looked_up(parameter)):
        _managed.clear()
        for group, candidate in _parameters():
            _managed[id(sharded(candidate))] = weakref.ref(group), weakref.ref(candidate)
        found = _looked_up(parameter)
    return found or (None, None)


def _looked_up(parameter: torch.Tensor) -> tuple | None:
    group, candidate = (one() for one in _managed.get(id(parameter), (lambda: None,) * 2))
    is_its = None not in (group, candidate) and sharded(candidate) is parameter
    return (group, candidate) if is_its else None


def modules_of_tree(group) -> set:
    """All modules of a group's module tree, as far as it is known."""
    roots = (root for state in _states(group) for root in state._modules)
    return {module for root in roots for module in root.modules()}


def modules_of(parameter) -> list:
    """Those that hold a parameter."""
    info = parameter._module_info
    return [info.module, *info.shared_modules]


def gathered_dtype(parameter) -> torch.dtype:
    """The dtype in which a plain parameter is gathered, which FSDP2 fixes at the first gather."""
    policy = parameter.mp_policy.param_dtype
    return getattr(parameter, "param_dtype", policy) or sharded(parameter).dtype


def full_shape(parameter) -> torch.Size:
    return parameter._orig_size


def placement(parameter):
    """How a parameter is cut. While it is gathered, torch_parameters may have set another
    placement in FSDP2's place for it.
    """
    return getattr(parameter, "own_placement", parameter.fsdp_placement)


def cut_dimension(parameter) -> int:
    return placement(parameter).dim


def gather_device(parameter) -> torch.device:
    """The device that payloads arrive on."""
    return parameter.device


def offloading_device(parameter) -> torch.device | None:
    """The same, where shards stay on the CPU (CPUOffloadPolicy); else None."""
    return parameter.device if parameter.offload_to_cpu else None


def parallel_spec(parameter):
    """How tensor parallelism had cut a weight before fully_shard did; None if it had not."""
    return parameter._tp_spec if parameter.is_dtensor else None


def shard_rank(parameter) -> int:
    """Which of its shards is this rank's; of replicate() the only one."""
    return getattr(parameter.mesh_info, "shard_mesh_rank", 0)


def shard_rows(parameter) -> int:
    """The rows of the first rank's shard, as a matrix."""
    return parameter.padded_sharded_param_size[:-1].numel()


def world(parameter) -> int:
    """The number of shards; replicate() makes one."""
    return getattr(parameter.mesh_info, "shard_mesh_size", 1)


def is_kept(group) -> bool:
    """Whether the forward's gather may serve the backward too. The root module's is kept by
    default, and before the first forward any may be the root.
    """
    state = _state(group)
    undecided = state._is_root is None and state._auto_reshard_after_forward
    return undecided or not group._reshard_after_forward or reshards_to_smaller_mesh(group)


def is_backward(group) -> bool:
    """Whether a gather is the backward's, as far as FSDP2 tells: a recomputation looks like the
    backward that it is part of.
    """
    return group._training_state == TrainingState.PRE_BACKWARD


def is_asked_for(group) -> bool:
    """Whether a gather is that of unshard(), outside of any forward and backward."""
    return group._training_state == TrainingState.IDLE


def reshards_to_smaller_mesh(group) -> bool:
    """Whether a part of a mesh keeps after the forward what all of it have gathered."""
    return group._use_post_forward_mesh


def reshard_all(modules) -> None:
    """Registers the sharded parameters of these modules, whichever FSDP module manages them. A
    gather that is under way ends first.
    """
    asked = set(modules)
    theirs = (group for group, one in _parameters() if not asked.isdisjoint(modules_of(one)))
    for group in list(dict.fromkeys(theirs)):
        group.wait_for_unshard()
        group.reshard()
