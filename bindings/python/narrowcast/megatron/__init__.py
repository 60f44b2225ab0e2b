"""Weights in narrow formats in Megatron-Core's tensor-parallel layers: docs/megatron.md.

ImportError if megatron-core is missing, or is a version that this was not written for.
"""

from narrowcast.megatron import versions

versions.check()

from narrowcast.megatron.data_parallel import DistributedDataParallel  # noqa: E402
from narrowcast.megatron.layers import ColumnParallelLinear, RowParallelLinear  # noqa: E402
from narrowcast.megatron.optimizer import (  # noqa: E402
    DistributedOptimizer,
    get_megatron_optimizer,
)
from narrowcast.megatron.specs import (  # noqa: E402
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
