"""Modules that wrap a whole model. DistributedDataParallel (and replicate(), which makes one) keeps
every weight whole on every rank, and gives all ranks those of one. FullyShardedDataParallel
flattens parameters, which no format allows.
"""

import functools

import torch.distributed as dist
from torch import nn
from torch.distributed._composable import replicate
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

from narrowcast.master.weight import MasterWeight, announces
from narrowcast.tensor import QuantizedTensor


def check_unwrapped(model: nn.Module) -> None:
    """ValueError if a module is wrapped already, by what would go on with the old parameters."""
    wrappers = FullyShardedDataParallel, DistributedDataParallel
    for path, module in model.named_modules():
        if isinstance(module, wrappers) or replicate.state(module) is not None:
            raise ValueError(
                f"{path or 'the model'} is under DistributedDataParallel, replicate() or "
                "FullyShardedDataParallel already, which go on with the parameters that they have "
                "found. Call nc.convert first, and wrap the model then: with the first two, or "
                "with fully_shard"
            )


def keeping_weights(function):
    """FullyShardedDataParallel's __init__, which would put parts of a long plain tensor in the
    place of weights: their bytes would be gone without a word.
    """

    @functools.wraps(function)
    def init(self, module, *arguments, **options):
        for name, parameter in module.named_parameters():
            if isinstance(parameter, MasterWeight):
                raise NotImplementedError(
                    f"{name}: FullyShardedDataParallel joins parameters to one plain tensor, and "
                    f"{parameter.format.name} is a format of matrices. Use fully_shard"
                )
        function(self, module, *arguments, **options)

    return init


def sent_as_bytes(function):
    """torch's function that gives all ranks the parameters and buffers of one, joined to long plain
    tensors. Frozen weights travel as the bytes that they are, and those that announce another
    dtype than float32 as their values, which would be rounded to it, on the rank that sends, too.
    """

    @functools.wraps(function)
    def synchronize(
        module, process_group, broadcast_bucket_size, src, params_and_buffers_to_ignore, **options
    ):
        ignored = set(params_and_buffers_to_ignore)
        weights = {
            name: parameter
            for name, parameter in module.named_parameters()
            if name not in ignored
            and (isinstance(parameter, QuantizedTensor) or announces(parameter))
        }
        ignored.update(weights)
        where = process_group, broadcast_bucket_size, src
        function(module, *where, params_and_buffers_to_ignore=ignored, **options)
        for weight in weights.values():
            dist.broadcast(weight.detach(), group=process_group, group_src=src)

    return synchronize
