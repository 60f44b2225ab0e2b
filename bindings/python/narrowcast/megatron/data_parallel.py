"""Megatron's data parallelism over quantized weights."""

from __future__ import annotations

import torch
import torch.distributed as dist
from megatron.core import distributed

from narrowcast.megatron import borrowed, buckets
from narrowcast.tensor import QuantizedTensor


class DistributedDataParallel(distributed.DistributedDataParallel):
    """Megatron's DDP, which takes the same arguments. Gradients of quantized weights are buffers as
    any; their bytes stay where they are and are gathered packed, in one collective a bucket.

    With overlap_param_gather the gathers run beside the forward, as Megatron's do. Frozen quantized
    weights stay as they are.

    NotImplementedError for options under which quantized weights cannot be kept.
    """

    def __init__(self, config, ddp_config, module, *args, **kwargs):
        _refuse(ddp_config)
        _refuse_dtypes(ddp_config, module)
        _name_weights(module)
        with borrowed.for_data_parallelism(buckets.Buffer, buckets.BucketGroup):
            super().__init__(config, ddp_config, module, *args, **kwargs)

    @torch.no_grad()
    def broadcast_params(self):
        """Has all data-parallel ranks take the first one's parameters: of a quantized weight its
        bytes, and its master while it has one.
        """
        for parameter in self.module.parameters():
            is_expert = not getattr(parameter, "allreduce", True)
            group = self.expt_dp_group if is_expert else self.dp_cp_group
            source = dist.get_global_rank(group, 0)
            for tensor in _memory_of(parameter):
                dist.broadcast(tensor, source, group)

    def finish_gathers(self) -> None:
        """Waits for the gathers that are under way, so that nothing old arrives later."""
        for group in self.bucket_groups + self.expert_parallel_bucket_groups:
            if group.param_gather_handle is not None:
                group.start_param_sync(force_sync=True)  # which finishes what there is

    def packed_bytes(self) -> int:
        """Bytes of quantized weights that one synchronization of the parameters brings to a rank,
        its own among them.
        """
        groups = self.bucket_groups + self.expert_parallel_bucket_groups
        return sum(group.packed_bytes for group in groups)


def _name_weights(module: torch.nn.Module) -> None:
    """For messages. Megatron tells a layer its path with a recipe alone."""
    for name, parameter in module.named_parameters():
        if isinstance(parameter, QuantizedTensor):
            store = parameter._store
            store.config = store.config._replace(name=name)


def _refuse_dtypes(ddp_config, module: torch.nn.Module) -> None:
    """ValueError where Megatron would have gradients of several dtypes in one buffer."""
    trained = (one for one in module.parameters() if one.requires_grad)
    dtypes = {one.dtype for one in trained if isinstance(one, QuantizedTensor)}
    if len(dtypes) > 1 and not ddp_config.grad_reduce_in_fp32:
        raise ValueError(
            f"the quantized weights are of {' and '.join(sorted(map(str, dtypes)))}, and gradients "
            "are reduced in the weights' dtype: set grad_reduce_in_fp32=True in "
            "DistributedDataParallelConfig, or make all of one dtype"
        )


def _memory_of(parameter: torch.Tensor) -> list[torch.Tensor]:
    """What makes up its value, the same on all ranks."""
    if not isinstance(parameter, QuantizedTensor):
        return [parameter.data]
    store = parameter._store
    store.refresh()
    if store.pending is not None:
        store.fresh("columnwise")
    return store.tensors


def _refuse(ddp_config) -> None:
    for option, way_out in (
        (
            "use_megatron_fsdp",
            "use narrowcast with torch's FSDP2 (docs/sharding.md), or leave it off",
        ),
        (
            "reuse_grad_buf_for_mxfp8_param_ag",
            "leave it off: the bytes of narrowcast's weights are gathered where they are",
        ),
    ):
        if getattr(ddp_config, option):
            raise NotImplementedError(
                f"narrowcast.megatron.DistributedDataParallel does not take {option}=True: "
                f"{way_out}"
            )
    if ddp_config.num_distributed_optimizer_instances > 1:
        raise NotImplementedError(
            "narrowcast.megatron.DistributedDataParallel has one optimizer instance: set "
            "num_distributed_optimizer_instances=1"
        )
