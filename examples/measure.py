"""What the demo's table says of a run: bytes on the wire, bytes of the weights."""

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

import narrowcast as nc


class CountedAllGather:
    """FSDP2's all-gather, counting the bytes that a rank holds after it."""

    def __init__(self, model):
        self.bytes = 0
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_custom_all_gather(self)

    def allocate(self, size, *, dtype, device):
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor, input_tensor, group, async_op=False):
        self.bytes += output_tensor.nbytes
        return dist.all_gather_into_tensor(
            output_tensor, input_tensor, group=group, async_op=async_op
        )


def stored_bytes(model) -> int:
    """Bytes of the weights that this rank keeps for its passes, fp32 masters apart."""
    total = 0
    for parameter in model.parameters():
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        if isinstance(local, nc.QuantizedTensor):
            buffers = [
                local.rowwise_data,
                local.rowwise_scale_inv,
                local.columnwise_data,
                local.columnwise_scale_inv,
            ]
            total += sum(buffer.nbytes for buffer in buffers if buffer is not None)
        else:
            total += local.nbytes
    return total
