"""Modules that wrap a whole model. DistributedDataParallel (and replicate(), which makes one) keeps
every weight whole on every rank, and gives all ranks those of one. FullyShardedDataParallel
flattens parameters, which no format allows: see cat in narrowcast.operators.joins.
"""

import functools

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._composable import replicate
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

from narrowcast import ranks
from narrowcast.tensor import QuantizedTensor


def check_unwrapped(model: nn.Module) -> None:
    """ValueError if a module of a model that is to be converted has been wrapped already: the
    wrapper would go on with the parameters that it has found.
    """
    for path, module in model.named_modules():
        if isinstance(module, FullyShardedDataParallel):
            raise ValueError(
                f"{path or 'the model'} is a FullyShardedDataParallel (FSDP1), which holds its "
                "parameters flattened. Convert the plain model, and shard it with "
                "torch.distributed.fsdp.fully_shard"
            )
        if isinstance(module, DistributedDataParallel) or replicate.state(module) is not None:
            raise ValueError(
                f"{path or 'the model'} is under DistributedDataParallel (or replicate()) already, "
                "which reduces the gradients of the parameters that it has found, and of no "
                "others. Call nc.convert first, and wrap the model then"
            )


def _describe(name: str, weight: QuantizedTensor) -> str:
    """What all ranks must have alike of a weight, of which one rank sends every buffer."""
    store = weight._store
    size = f"{store.rows}x{store.columns} in {store.format.identity}"
    parts = " and ".join([*store.bytes.usages, *(["master"] if store.master else [])])
    return f"{name}, {size}, with {parts}"


def sent_as_bytes(function):
    """torch's function that gives all ranks the parameters and buffers of one, joined to long plain
    tensors. Quantized weights travel as the buffers and the master that they are.
    """

    @functools.wraps(function)
    def synchronize(
        module, process_group, broadcast_bucket_size, src, params_and_buffers_to_ignore, **options
    ):
        ignored = set(params_and_buffers_to_ignore)
        weights = {
            name: parameter
            for name, parameter in module.named_parameters()
            if isinstance(parameter, QuantizedTensor) and name not in ignored
        }
        device = next(module.parameters()).device
        lines = [_describe(name, weight) for name, weight in weights.items()]
        facts = [(process_group, device, line) for line in ["weights in this order", *lines]]
        ranks.same("the weights that one rank gives all others", facts)
        ignored.update(weights)
        where = process_group, broadcast_bucket_size, src
        function(module, *where, params_and_buffers_to_ignore=ignored, **options)
        with torch.no_grad():
            for weight in weights.values():
                weight._store.refresh()
            tensors = [tensor for weight in weights.values() for tensor in weight._store.tensors]
            if tensors:
                dist._broadcast_coalesced(process_group, tensors, broadcast_bucket_size, src)

    return synchronize
