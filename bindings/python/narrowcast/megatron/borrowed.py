"""The private names of Megatron-Core 0.16 that narrowcast leans on, and the globals that it rebinds
while one of our own calls runs.

Megatron's DDP and distributed optimizer handle one foreign kind of weight, Transformer Engine's,
and ask for it by functions that they hold as globals. While our subclasses call their base class,
those functions answer for QuantizedTensor too; afterwards Megatron is as it was.

What is subclassed, overridden, called or read, beside public names:

param_and_grad_buffer
    _ParamAndGradBuffer and _ParamAndGradBucketGroup, since DDP makes both itself; of the first
    param_data, param_index_map, numel_unpadded, of the second param_gather_handle,
    param_gather_dispatched and intra_distributed_optimizer_instance_group; of a bucket its params,
    data, offset and sizes
DistributedDataParallel
    bucket_groups, expert_parallel_bucket_groups
DistributedOptimizer
    _build_model_and_main_param_groups, _copy_main_params_to_model_params,
    _copy_model_params_to_main_params, _get_main_param_and_optimizer_states,
    _set_main_param_and_optimizer_states, _get_fp8_params_and_shard_fp32_from_fp8,
    sharded_param_state_fully_reshardable,
    load_parameter_state_from_dp_zero, buffers, model_chunks, shard_float16_groups,
    shard_fp32_from_float16_groups, is_stub_optimizer
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from megatron.core import fp8_utils
from megatron.core import optimizer as optimizers
from megatron.core.distributed import distributed_data_parallel as data_parallel
from megatron.core.distributed import param_and_grad_buffer as buffers
from megatron.core.models.gpt import gpt_layer_specs
from megatron.core.optimizer import distrib_optimizer

from narrowcast.optim import FusedAdam
from narrowcast.tensor import QuantizedTensor


def is_quantized(tensor: torch.Tensor) -> bool:
    """Megatron's is_float8tensor, also of narrowcast's weights."""
    return isinstance(tensor, QuantizedTensor) or fp8_utils.is_float8tensor(tensor)


def dequantized(tensor: torch.Tensor) -> torch.Tensor:
    """Megatron's dequantize_fp8_tensor, also of narrowcast's weights."""
    if isinstance(tensor, QuantizedTensor):
        return tensor.detach().dequantize()
    return fp8_utils.dequantize_fp8_tensor(tensor)


def for_specs(backend: Callable[[], object]):
    """While Megatron makes the spec of a layer: its local backend is ours."""
    return _rebound((gpt_layer_specs, "LocalSpecProvider", backend))


def for_data_parallelism(buffer: type, bucket_group: type):
    """While DDP is made: `buffer` and `bucket_group` are ours, and quantized parameters go into
    buffers of their own (is_float8tensor gives them the key torch.uint8).
    """
    return _rebound(
        (data_parallel, "_ParamAndGradBuffer", buffer),
        (data_parallel, "is_float8tensor", is_quantized),
        # What partition_buckets makes.
        (buffers, "_ParamAndGradBucketGroup", bucket_group),
    )


def for_optimizer():
    """While the distributed optimizer is made, or reads or writes state: it takes FusedAdam for its
    Adam, asserts that it is one, and keeps steps where torch's Adam does, by parameter.
    """
    return _rebound(
        (distrib_optimizer, "Adam", FusedAdam),
        (distrib_optimizer, "HAVE_APEX_OR_TE", False),
        (distrib_optimizer, "is_float8tensor", is_quantized),
        (distrib_optimizer, "dequantize_fp8_tensor", dequantized),
    )


def for_construction(distributed_optimizer: type, adam):
    """While get_megatron_optimizer runs: it makes our optimizers, calling `adam` as it would call
    apex's FusedAdam.
    """
    return _rebound(
        (optimizers, "DistributedOptimizer", distributed_optimizer),
        (optimizers, "Adam", adam),
        (optimizers, "USING_PYTORCH_OPTIMIZER", False),
    )


@contextlib.contextmanager
def _rebound(*names: tuple[ModuleType, str, Any]) -> Iterator[None]:
    """AttributeError if Megatron has no such name."""
    with contextlib.ExitStack() as stack:
        for module, name, value in names:
            stack.enter_context(mock.patch.object(module, name, value))
        yield


def refuse(config, *options: str) -> None:
    """NotImplementedError if one is on."""
    for option in options:
        if getattr(config, option):
            raise NotImplementedError(
                f"narrowcast.megatron does not take {option}={getattr(config, option)}: leave it "
                "off (docs/megatron.md)"
            )
