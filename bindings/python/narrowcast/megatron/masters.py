"""The float32 shards that a rank's optimizer updates."""

from __future__ import annotations

import torch
from megatron.core import tensor_parallel

from narrowcast.tensor import QuantizedTensor


def model_shard(parameter: torch.Tensor, begin: int, end: int) -> torch.Tensor | None:
    """A plain parameter's elements, a view of its memory; of a quantized one None, for its bytes
    have no such view.
    """
    if isinstance(parameter, QuantizedTensor):
        return None
    return _with_attributes(parameter.detach().view(-1)[begin:end], parameter)


def master_shard(parameter: torch.Tensor, begin: int, end: int) -> torch.Tensor:
    """float32 [end - begin], the value of a parameter's elements: a view of a float32 parameter's
    memory, memory of its own for all others.
    """
    value = parameter.detach()
    if isinstance(parameter, QuantizedTensor):
        kept = value.master
        value = (kept if kept is not None else value.dequantize()).reshape(-1)[begin:end].clone()
    else:
        value = value.view(-1)[begin:end].float()
    return _with_attributes(value, parameter)


def _with_attributes(shard: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """What Megatron's norms ask of a parameter, written on its shard."""
    tensor_parallel.copy_tensor_model_parallel_attributes(shard, parameter)
    if hasattr(parameter, "shared"):
        shard.shared = parameter.shared
    return shard
