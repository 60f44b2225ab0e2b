"""FSDP2's own parameters where it does what suits plain ones alone: subclasses of its FSDPParam,
which an FSDPParam that has a quantized weight becomes. Private names of FSDP2 stand here and in
torch_names alone.
"""

import torch
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam, ShardedState
from torch.distributed.tensor import Shard

from narrowcast.fsdp import torch_names


class OverSmallerMesh(FSDPParam):
    """After the forward it stays gathered over a smaller mesh (reshard_after_forward is a number).
    Each rank keeps of every slot the part that its place in that mesh gives it, and a gather of
    these parts over that mesh fills the same slots with the same bytes.
    """

    def to_sharded_post_forward(self) -> None:
        mesh = self.post_forward_mesh_info
        slots = (slot.chunk(mesh.shard_mesh_size) for slot in self.all_gather_outputs)
        # FSDP2 lets go of it with the next gather.
        self._sharded_post_forward_param_data = [s[mesh.shard_mesh_rank].clone() for s in slots]
        self._setattr_on_modules(self.sharded_param)  # as with True: nobody computes with parts
        self.free_unsharded_param()
        self.sharded_state = ShardedState.SHARDED_POST_FORWARD

    @property
    def all_gather_inputs(self) -> list[torch.Tensor]:
        if self.sharded_state != ShardedState.SHARDED_POST_FORWARD:
            return super().all_gather_inputs
        parts = self._sharded_post_forward_param_data
        plan, index = torch_names.store_of(self).sender
        self._extensions_data.all_gather_metadata = plan().send_again(index)
        self._extensions_data.all_gather_input_sizes = [part.size() for part in parts]
        return parts


class CutIntoColumns(FSDPParam):
    """FSDP2 takes what it has gathered for pieces of a plain weight, if that is cut along another
    dimension than the first, and puts them together itself. Payloads are none. So while it hands
    them out, from here to the post-hook, it takes them for rows.
    """

    def alloc_all_gather_outputs(self) -> None:
        super().alloc_all_gather_outputs()
        self.fsdp_placement = Shard(0)

    def init_unsharded_param(self) -> None:
        self.fsdp_placement = self.own_placement
        super().init_unsharded_param()


class CutIntoColumnsOverSmallerMesh(CutIntoColumns, OverSmallerMesh):
    """Both."""


_CLASSES = {  # by whether it is cut into columns, and whether it is kept over a smaller mesh
    (False, False): FSDPParam,
    (False, True): OverSmallerMesh,
    (True, False): CutIntoColumns,
    (True, True): CutIntoColumnsOverSmallerMesh,
}


def adapt(parameter: FSDPParam, over_smaller_mesh: bool) -> None:
    """Before the first gather: has FSDP2 treat a parameter as a quantized weight wants it."""
    by_columns = torch_names.cut_dimension(parameter) != 0
    parameter.own_placement = parameter.fsdp_placement
    parameter.__class__ = _CLASSES[by_columns, over_smaller_mesh]
