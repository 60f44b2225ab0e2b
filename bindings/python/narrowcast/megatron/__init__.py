"""Weights in narrow formats in Megatron-Core's tensor-parallel layers: docs/megatron.md.

ImportError if megatron-core is missing, or is a version that this was not written for.
"""

from megatron.core import __version__ as _version

# Private methods of its layers are overridden: a version counts once the tests have run with it.
if not _version.startswith("0.16."):
    raise ImportError(
        f"narrowcast.megatron works with megatron-core 0.16.x, and {_version} is installed: "
        "pip install megatron-core==0.16.1"
    )

from narrowcast.megatron.data_parallel import DistributedDataParallel
from narrowcast.megatron.layers import ColumnParallelLinear, RowParallelLinear
from narrowcast.megatron.optimizer import (
    DistributedOptimizer,
    get_megatron_optimizer,
)
from narrowcast.megatron.specs import (
    SpecProvider,
    get_gpt_layer_spec,
    gpt_layer_spec,
)

__all__ = [
    "ColumnParallelLinear",
    "DistributedDataParallel",
    "DistributedOptimizer",
    "RowParallelLinear",
    "SpecProvider",
    "get_gpt_layer_spec",
    "get_megatron_optimizer",
    "gpt_layer_spec",
]
