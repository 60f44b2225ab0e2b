"""Weights in narrow formats in Megatron-Core's tensor-parallel layers: docs/megatron.md.

ImportError if megatron-core is missing, or is a version that this was not written for.
"""

from narrowcast.megatron import versions

versions.check()

from narrowcast.megatron.construction import get_megatron_optimizer  # noqa: E402
from narrowcast.megatron.data_parallel import DistributedDataParallel  # noqa: E402
from narrowcast.megatron.layers import ColumnParallelLinear, RowParallelLinear  # noqa: E402
from narrowcast.megatron.optimizer import DistributedOptimizer  # noqa: E402
from narrowcast.megatron.provider import SpecProvider  # noqa: E402
from narrowcast.megatron.specs import get_gpt_layer_spec, gpt_layer_spec  # noqa: E402

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
