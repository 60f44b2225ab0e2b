"""A subclass of FSDP2's FSDPParam, for what FSDP2 does in a way that suits plain parameters alone.
An FSDPParam that has a quantized weight gets this class when it is cut. Private names of FSDP2
are here, in torch_names and in conversion.torch_hooks alone.
"""

import torch
from torch import nn
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam, ShardedState
from torch.distributed.tensor import Shard

from narrowcast import _C
from narrowcast.fsdp import torch_names

_ROWS = Shard(0)


class Quantized(FSDPParam):
    """At every gather FSDP2 inspects the signature of the pre-hook, views payloads as they were
    before it flattened them, and makes and frees the memory of each payload, which takes longer
    than the hooks themselves. Here payloads have one dimension, and a group's memory is one.

    A shard that stays on the CPU it would copy to the gathers' device, master and all, and ask the
    copy for payloads; here the shard itself is asked, and they alone travel.

    After the forward it may stay gathered over a smaller mesh (reshard_after_forward is a number).
    Each rank keeps of every receive buffer the part that its place in that mesh gives it, and a
    gather of these parts over that mesh fills the same buffers with the same bytes.

    FSDP2 takes what it has gathered for pieces of a plain weight, if that is cut along another
    dimension than the first, and puts them together itself. Payloads are no such pieces. So while
    it hands them out, from alloc_all_gather_outputs to init_unsharded_param, it is told of rows.
    """

    # The group's ReceiveBuffers, and its number there; None of one rank, where FSDP2 sees to it.
    receive: tuple | None = None

    def reset_sharded_param(self) -> None:
        """Takes the tensor that the module has. FSDP2 would pad it, for gathers without hooks."""
        _C.note_change()
        info = self._module_info
        self.sharded_param = getattr(info.module, info.param_name)
        self.sharded_param._local_tensor = _pinned(self, self.sharded_param._local_tensor)
        self._sharding_spec, self._sharded_param_data = self.sharded_param._spec, None

    @property
    def all_gather_inputs(self) -> list[torch.Tensor]:
        data = self._extensions_data
        if self.sharded_state == ShardedState.SHARDED_POST_FORWARD:
            plan, index = torch_names.local_tensor(self)._store.sender
            data.all_gather_metadata = plan(), index, False  # such gathers serve both passes
            return self._sharded_post_forward_param_data
        shard = torch_names.local_tensor(self)
        payloads, data.all_gather_metadata = shard.fsdp_pre_all_gather(self)
        return payloads

    def init_all_gather_outputs(self, *sizes, **options) -> None:
        if self.receive is None:
            super().init_all_gather_outputs(*sizes, **options)
        elif not self.all_gather_outputs:
            buffers, number = self.receive
            self.all_gather_outputs = buffers.tensors(number)

    def alloc_all_gather_outputs(self) -> None:
        self.fsdp_placement = _ROWS
        if self.receive is None:
            super().alloc_all_gather_outputs()
        else:
            buffers, number = self.receive
            buffers.allocate(number)

    def init_unsharded_param(self) -> None:
        self.fsdp_placement = self.own_placement
        super().init_unsharded_param()

    def free_unsharded_param(self) -> None:
        if self.receive is None:
            super().free_unsharded_param()
        else:
            buffers, number = self.receive
            buffers.free(number)

    def _unflatten_all_gather_outputs(self) -> list[torch.Tensor]:
        return self.all_gather_outputs

    def to_unsharded(self) -> None:
        # It asks whether the weight requires a gradient, which is a function of torch's.
        with torch._C.DisableTorchFunctionSubclass():
            super().to_unsharded()

    def to_sharded_post_forward(self) -> None:
        mesh = self.post_forward_mesh_info
        parts = (one.chunk(mesh.shard_mesh_size) for one in self.all_gather_outputs)
        # FSDP2 lets go of it with the next gather.
        self._sharded_post_forward_param_data = [p[mesh.shard_mesh_rank].clone() for p in parts]
        self._setattr_on_modules(self.sharded_param)  # as with True: no product reads parts
        self.free_unsharded_param()
        self.sharded_state = ShardedState.SHARDED_POST_FORWARD


def adapt(parameter: FSDPParam) -> None:
    """Gives a parameter the class that its weight needs, if that has just been cut, or has taken
    another one's place.
    """
    is_quantized = hasattr(torch_names.local_tensor(parameter), "fsdp_pre_all_gather")
    # FSDP2 makes its parameters itself, and takes no class for them.
    parameter.__class__ = Quantized if is_quantized else FSDPParam
    parameter.own_placement = parameter.fsdp_placement


def _pinned(parameter: FSDPParam, local: torch.Tensor) -> torch.Tensor:
    """A shard in the memory that CPUOffloadPolicy wants it in."""
    if not parameter.pin_memory or local.is_meta or local.is_pinned():
        return local
    return local.cpu().pin_memory()


def begin_with(parameter: FSDPParam, local: torch.Tensor) -> None:
    """Gives a parameter that has just been cut the shard, of which FSDP2 has cut the shape."""
    if parameter.offload_to_cpu and not local.is_meta:
        local = _pinned(parameter, local.cpu())
    made = parameter.to_sharded_dtensor(local)
    parameter.sharded_param = nn.Parameter(made, parameter.sharded_param.requires_grad)
    parameter._sharded_param_data = None
    parameter._setattr_on_modules(parameter.sharded_param)


def replace_shard(group, parameter, local: torch.Tensor) -> None:
    """Replaces the local tensor of a shard, whose gradient stays if the parameter still requires
    one. FSDP2 then treats it as at its first gather.
    """
    if not parameter.sharded_param.requires_grad:
        parameter.sharded_param.grad = None
    group._to_sharded()
    forget_gathered(parameter)
    parameter.sharded_param._local_tensor = local
    adapt(parameter)
    parameter.reset_sharded_param()
    parameter._init_extensions()
    if hasattr(parameter, "_extensions_data"):  # left by a gather that was not awaited
        parameter._extensions_data.clear()


def forget_gathered(parameter: FSDPParam) -> None:
    """The next gather is FSDP2's first one of a parameter."""
    # It may be another one since a gather that ended in an exception.
    parameter.fsdp_placement, parameter.receive = torch_names.placement(parameter), None
    parameter.all_gather_outputs = []
    if hasattr(parameter, "_unsharded_param"):
        del parameter._unsharded_param
