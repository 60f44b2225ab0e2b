"""The hooks of FSDP2, and the only place that knows its private names (torch 2.11)."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import torch

from narrowcast import casting, errors
from narrowcast.gather import Gather, Weight
from narrowcast.matrix import Matrix

_TORCH = "2.11"
if not torch.__version__.startswith(_TORCH + "."):
    raise ImportError(
        f"narrowcast uses private names of FSDP2 and was written for torch {_TORCH}; this is "
        f"torch {torch.__version__}"
    )


class Plan:
    """What is known of one sharded weight: made at its first gather and never changed, because
    FSDP2 fixes payloads then.
    """

    def __init__(self, state, group, parameter):
        if group._use_post_forward_mesh:
            raise NotImplementedError(
                f"{_matrix_of(parameter).describe()}: reshard_after_forward to a smaller mesh (a "
                "number) is not supported, because FSDP2 cuts gathered bytes where it likes. Use "
                "True or False"
            )
        shard = _matrix_of(parameter)
        self.state, self.group, self.parameter = state, group, parameter
        self.shape = parameter._orig_size
        weight = Weight(
            shard.format,
            rows=self.shape[:-1].numel(),
            columns=shard.columns,
            shard_rows=parameter.padded_sharded_param_size[:-1].numel(),
            world=_world(parameter),
        )
        # Before the first forward nobody knows the root, which by default does not reshard.
        undecided = state._is_root is None and state._auto_reshard_after_forward
        kept = undecided or not group._reshard_after_forward
        self.gather = Gather(weight, both=shard.recompute or kept)
        self.own: list[torch.Tensor] = []  # the whole matrix's memory besides the slots

    def kind(self) -> str:
        """The gather that the group's training state asks for. The state may mislead (recomputation
        looks like the backward that it is part of); then the first matrix product misses its usage
        and says so.
        """
        from torch.distributed.fsdp._fully_shard._fsdp_common import TrainingState

        return self.gather.kind(backward=self.group._training_state == TrainingState.PRE_BACKWARD)

    def refresh(self, shard: Matrix) -> None:
        """Makes stale bytes before they are sent. With a scale that spans the tensor: those of all
        shards of the model at once, with one reduction, in one order on all ranks, which have
        written to the same weights.
        """
        if not (shard.format.tensor_amax and shard.partial):
            shard.refresh()
            return
        process_group = self.parameter.mesh_info.shard_process_group
        states = self.state._state_ctx.all_states or [self.state]
        groups = [state._fsdp_param_group for state in states if state._fsdp_param_group]
        shards = [
            _matrix_of(parameter)
            for group in groups
            for parameter in group.fsdp_params
            if _process_group(parameter) == process_group
        ]
        stale = [
            shard
            for shard in shards
            if shard is not None and shard.stale and shard.partial and shard.format.tensor_amax
        ]
        casting.cast_masters(stale, process_group)


def pre_all_gather(tensor):
    """The payloads of a shard, and what goes from here to gathered() and fill_again() on this rank.
    It may run without them: it changes nothing.
    """
    shard = tensor._matrix
    if shard.plan is None:
        _make_plans(tensor)
    plan = shard.plan
    with torch.no_grad():
        if shard.stale:
            plan.refresh(shard)
        kind = plan.kind()
        return plan.gather.pack(shard, kind), (plan, kind, shard)


def gathered(slots, metadata) -> tuple[Matrix, torch.Size, list[torch.Tensor]]:
    """The whole weight, over the slots: its matrix, its shape, and its memory besides the slots."""
    plan, kind, shard = metadata
    with torch.no_grad():
        buffers, plan.own = plan.gather.room(slots)
        spanning = [None if one is None else torch.empty_like(one) for one in shard.spanning]
        whole = Matrix(shard.format, plan.shape[:-1].numel(), shard.columns, buffers, *spanning)
        whole.inherit(shard)
        plan.gather.fill(whole, slots, kind, shard)
        return whole, plan.shape, plan.own


def fill_again(whole: Matrix, slots, metadata) -> None:
    """Makes the bytes of an earlier gather's weight from those that have arrived in its slots."""
    plan, kind, shard = metadata
    # The bytes are those that autograd has seen before, so no version counter may move.
    with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(tuple(plan.own)):
        plan.gather.fill(whole, slots, kind, shard)


def _matrix_of(parameter) -> Matrix | None:
    """The shard of an FSDPParam, if it is quantized."""
    return getattr(parameter._sharded_local_tensor, "_matrix", None)


def _world(parameter) -> int:
    """The number of shards of an FSDPParam; replicate() makes one."""
    return getattr(parameter.mesh_info, "shard_mesh_size", 1)


def _process_group(parameter):
    return getattr(parameter.mesh_info, "shard_process_group", None)


def _states() -> Iterator:
    from torch.distributed._composable_state import _module_state_mapping
    from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState

    for reference in list(_module_state_mapping.values()):
        state = reference()
        if isinstance(state, FSDPState) and state._fsdp_param_group is not None:
            yield state


def _make_plans(tensor) -> None:
    """Finds the group that a shard belongs to and makes plans for all of it. A plan outlives its
    shard: FSDP2 replaces the local tensor of a rank with fewer rows at every load.
    """
    for state in _states():
        group = state._fsdp_param_group
        if not any(parameter._sharded_local_tensor is tensor for parameter in group.fsdp_params):
            continue
        for parameter in group.fsdp_params:
            matrix = _matrix_of(parameter)
            if matrix is None:
                continue
            if getattr(parameter, "_narrowcast_plan", None) is None:
                parameter._narrowcast_plan = Plan(state, group, parameter)
            matrix.plan = parameter._narrowcast_plan
        return
    raise NotImplementedError(
        f"{tensor._matrix.describe()}: this shard belongs to no module that fully_shard manages. "
        "CPU offloading, which gathers from a copy of the shard, is not supported"
    )


def is_sharding() -> bool:
    """Whether fully_shard is calling: it cuts a weight with the functions that users have too."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("torch.distributed.fsdp."):
            return True
        frame = frame.f_back
    return False


def check_sharded(parameter, name: str) -> None:
    """NotImplementedError unless a DTensor is sharded by fully_shard alone, and along rows."""
    _, managed = _managed(parameter) or (None, None)
    if managed is None or managed.is_dtensor:
        raise NotImplementedError(
            f"{name} is a DTensor that is not sharded by fully_shard alone (tensor parallelism, "
            f"for example), with placements {parameter.placements}: only fully_shard's own "
            "sharding is supported. Leave it out with filter"
        )
    if managed.fsdp_placement.dim != 0:
        raise errors.cannot_shard_columns(name, managed.fsdp_placement.dim)


def shard_count(parameter) -> int:
    """Into how many shards fully_shard has cut a parameter."""
    return _world(_managed(parameter)[1])


def replace_shard(parameter, local) -> None:
    """Puts a quantized tensor in the place of a sharded parameter's local tensor, and has FSDP2
    look at it as if for the first time.
    """
    group, managed = _managed(parameter)
    group._to_sharded()
    parameter._local_tensor = local
    managed.reset_sharded_param()
    managed._init_extensions()
    managed.all_gather_outputs = []
    if hasattr(managed, "_unsharded_param"):
        del managed._unsharded_param


def reshard_all(modules) -> None:
    """Registers the sharded parameters of all FSDP modules among these."""
    from torch.distributed.fsdp import FSDPModule

    for module in modules:
        if isinstance(module, FSDPModule):
            module.reshard()


def _managed(parameter):
    """The group and the FSDPParam of a sharded parameter, or None."""
    for state in _states():
        for candidate in state._fsdp_param_group.fsdp_params:
            if candidate.sharded_param is parameter:
                return state._fsdp_param_group, candidate
    return None
