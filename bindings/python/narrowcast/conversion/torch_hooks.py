"""All that narrowcast replaces in torch. `import narrowcast` replaces nothing; install() does, once
in a process: the first nc.convert calls it, Megatron's layers do as they are converted, and so does
the first quantized parameter that is unpickled. A copy of a converted model needs nothing more. A
parameter that is made by hand, nn.Parameter(nc.quantize(x)), calls nothing here.

For models without quantized weights each function does what torch's own does. One that was imported
by its name before the first nc.convert is torch's own.
"""

import functools

from torch.distributed import _state_dict_utils
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam
from torch.distributed.tensor import Shard
from torch.nn.parallel import distributed

from narrowcast.checkpoint import full_state_dicts
from narrowcast.fsdp import sharding
from narrowcast.parallel import distributing, wrappers
from narrowcast.tensor import dispatch

# Whose function, its name, what makes the new one of it.
_REPLACED = [
    # They cut weights, which have to know it, and bytes, which only narrowcast can cut.
    (FSDPParam, "_init_sharded_param", sharding.cutting_weights),
    (FSDPParam, "_init_sharded_post_forward_param_metadata", sharding.measuring_weights),
    (Shard, "_split_tensor", distributing.splitting_bytes),
    # DistributedDataParallel would send decoded values of frozen weights, and ranks cast them anew.
    (distributed, "_sync_module_states", wrappers.sent_as_bytes),
    (FullyShardedDataParallel, "__init__", wrappers.keeping_weights),
    # Full state dicts of weights without masters would be sent as other tensors than the other
    # ranks wait for.
    (_state_dict_utils, "_broadcast_tensors", full_state_dicts.with_bytes),
]


@functools.cache
def install() -> None:
    """Replaces them. Idempotent."""
    for owner, name, made_of in _REPLACED:
        setattr(owner, name, made_of(getattr(owner, name)))


dispatch.PARAMETER_LOADED.append(install)
