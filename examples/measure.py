"""What the examples say of a run: bytes on the wire, memory, means over ranks."""

import resource

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule


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


def peak_memory(device):
    """The most GB that this process has had: of the GPU's memory, or of the host's."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 1e9
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def mean_over_ranks(value):
    """A tensor of no dimensions. Nothing waits for it."""
    value = value.detach().clone()
    dist.all_reduce(value)
    return value / dist.get_world_size()
