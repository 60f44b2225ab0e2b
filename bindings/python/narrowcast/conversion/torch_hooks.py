"""All that narrowcast replaces in torch. `import narrowcast` replaces nothing; install() does, once
in a process: the first nc.convert calls it, Megatron's layers do as they are converted, and so does
the first quantized parameter that is unpickled. A copy of a converted model needs nothing more. A
parameter that is made by hand, nn.Parameter(nc.quantize(x)), calls nothing here.

For models without quantized weights each function does what torch's own does. One that was imported
by its name before the first nc.convert is torch's own.
"""

import functools

import torch
from torch import nn
from torch.distributed import _state_dict_utils
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.nn.parallel import distributed
from torch.optim.swa_utils import AveragedModel

from narrowcast.checkpoint import full_state_dicts
from narrowcast.master.weight import MasterWeight
from narrowcast.operators import averages
from narrowcast.parallel import distributing, wrappers
from narrowcast.tensor import QuantizedTensor, dispatch, dtensors


def by_value(function):
    """An initializer that runs on a plain float32 tensor in the place of a quantized one, sharded
    or not, with the random numbers of a plain tensor, and writes what it leaves: the bytes are made
    once.
    """

    @functools.wraps(function)
    def initializer(tensor, *args, **kwargs):
        local = dtensors.local_of(tensor)
        is_shard = isinstance(tensor, DTensor) and isinstance(local, MasterWeight)
        if not (is_shard or isinstance(local, QuantizedTensor)):
            return function(tensor, *args, **kwargs)
        plain = torch.empty(local.shape, dtype=torch.float32, device=local.device)
        value = dtensors.like(tensor, plain)
        if function.__name__ == "eye_":  # torch.eye knows no sharding
            (rows, columns), (row, column) = dtensors.box(tensor)
            plain.copy_(torch.eye(*tensor.shape)[row : row + rows, column : column + columns])
        else:
            function(value, *args, **kwargs)
        with torch.no_grad():
            tensor.copy_(value)
        return tensor

    return initializer


_INITIALIZERS = ("eye_", "dirac_", "orthogonal_", "sparse_", "trunc_normal_")
# Whose function, its name, what makes the new one of it.
_REPLACED = [
    # These consist of several operations, and random numbers would be rounded between two of them,
    # or an operation be refused. The other initializers are operators, which need no replacement.
    *((nn.init, name, by_value) for name in _INITIALIZERS),
    # Averages by a function of the user's would be rounded to the logical dtype, or read decoded
    # values, which small steps of an average do not change.
    (AveragedModel, "update_parameters", averages.of_masters),
    # DistributedDataParallel would send decoded values, and every rank round its masters to them.
    (distributed, "_sync_module_states", wrappers.sent_as_bytes),
    (FullyShardedDataParallel, "__init__", wrappers.keeping_weights),
    # On a mesh of one rank it would be the weight itself: within a module its arithmetic decodes,
    # and a write to it writes to the weight. On more ranks it is a copy of the masters.
    (DTensor, "full_tensor", distributing.full_tensor_of_masters),
    # Full state dicts of weights without masters would be sent as other tensors than the other
    # ranks wait for.
    (_state_dict_utils, "_broadcast_tensors", full_state_dicts.with_bytes),
]


@functools.cache
def install() -> None:
    """Replaces them; twice is as once."""
    for owner, name, made_of in _REPLACED:
        setattr(owner, name, made_of(getattr(owner, name)))


dispatch.PARAMETER_LOADED.append(install)
