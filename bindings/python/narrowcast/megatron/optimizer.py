"""Megatron's distributed optimizer over quantized weights, and get_megatron_optimizer, which makes
them.
"""

from __future__ import annotations

import torch
from megatron.core import optimizer as optimizers
from megatron.core import tensor_parallel
from megatron.core.optimizer import distrib_optimizer

from narrowcast import flat
from narrowcast.megatron import borrowed, checkpoints, data_parallel, layers
from narrowcast.optim import FusedAdam
from narrowcast.tensor import QuantizedTensor


def get_megatron_optimizer(config, model_chunks, *args, **kwargs):
    """Megatron's function, with its arguments: parameter groups, grad scaler and chain are
    Megatron's, the optimizers are narrowcast's DistributedOptimizer over nc.FusedAdam.

    config        Megatron's OptimizerConfig, with optimizer="adam" and use_distributed_optimizer
    model_chunks  modules in narrowcast.megatron.DistributedDataParallel

    ValueError for other options, NotImplementedError for those that cannot work.
    """
    if not config.use_distributed_optimizer or config.optimizer != "adam":
        raise ValueError(
            "narrowcast.megatron.get_megatron_optimizer makes distributed optimizers of Adam: set "
            'optimizer="adam" and use_distributed_optimizer=True in OptimizerConfig, and the '
            "latter in DistributedDataParallelConfig, also for one rank"
        )
    with borrowed.for_construction(DistributedOptimizer, _adam):
        return optimizers.get_megatron_optimizer(config, model_chunks, *args, **kwargs)


def _adam(params, lr, weight_decay, betas, eps, adam_w_mode) -> FusedAdam:
    """With the groups' options, and the model's parameters as Megatron expects them, of which none
    has state: the distributed optimizer puts its shards in their places.
    """
    adam = FusedAdam(
        [{**group, "params": []} for group in params],
        lr=lr,
        betas=betas,
        eps=eps,
        weight_decay=weight_decay,
        adam_w_mode=adam_w_mode,
    )
    for group, given in zip(adam.param_groups, params, strict=True):
        group["params"] = given["params"]
    return adam


class DistributedOptimizer(checkpoints.Checkpoints, distrib_optimizer.DistributedOptimizer):
    """Megatron's, which takes the same arguments, with a nc.FusedAdam within.

    A rank has float32 masters of the elements that it owns, and their moments. Weights lose the
    masters that nc.convert gave them (docs/megatron.md).

    NotImplementedError for options that cannot work, ValueError for models in another DDP.
    """

    def __init__(
        self, optimizer, config, grad_scaler, init_state_fn, model_chunks, *args, **kwargs
    ):
        borrowed.refuse(
            config,
            "use_precision_aware_optimizer",  # masters and moments are float32
            "optimizer_cpu_offload",
            "reuse_grad_buf_for_mxfp8_param_ag",
        )
        for chunk in model_chunks:
            if not isinstance(chunk, data_parallel.DistributedDataParallel):
                raise ValueError(
                    "narrowcast's distributed optimizer got a model in another DDP: wrap it in "
                    "narrowcast.megatron.DistributedDataParallel"
                )
        for group in optimizer.param_groups if optimizer is not None else ():
            for parameter in group["params"]:
                if isinstance(parameter, QuantizedTensor):  # also where nothing of it is owned
                    parameter.main_param, parameter.main_param_sharded = None, True
        with borrowed.for_optimizer():
            super().__init__(
                optimizer, config, grad_scaler, init_state_fn, model_chunks, *args, **kwargs
            )
            # Of quantized weights, all of them on every rank: weights, masters and offsets.
            self._shards = [], [], []
            if not self.is_stub_optimizer:
                self._shards = self._get_fp8_params_and_shard_fp32_from_fp8()
        for weight in self._shards[0]:  # the shards are the masters now
            weight.clear_high_precision_init_val()
        for chunk in model_chunks:
            for parameter in chunk.parameters():
                if isinstance(parameter, QuantizedTensor) and not parameter.requires_grad:
                    setattr(parameter, layers.ALONE, True)
        if not self.is_stub_optimizer:
            flat.fuse(self.optimizer, *self._shards, self.data_parallel_group)
            # Megatron saves and loads it before the first step, too; shards require no gradient.
            self.optimizer.make_state(lambda _: True)

    @classmethod
    def _build_model_and_main_param_groups(
        cls, gbuf_ranges, param_gbuf_map, opt_group_ranges, config
    ):
        """Megatron's five lists of groups, where quantized weights are float16 parameters without a
        shard of the model's; and the optimizer's groups, in the order that
        model_param_group_index_map says.
        """
        lists = tuple([[] for _ in opt_group_ranges] for _ in range(5))
        for place, group_range in enumerate(opt_group_ranges):
            float16, float32, shards16, shards32, mains = (groups[place] for groups in lists)
            owned = []
            for parameter in group_range["params"]:
                buffer, key, bucket = param_gbuf_map[parameter]
                own = gbuf_ranges[buffer][key][bucket]["param_map"][parameter]["param"]
                shard = _model_shard(parameter, own.start, own.end)
                main = _master_shard(parameter, own.start, own.end)
                if shard is not None and shard.dtype == torch.float32:
                    float32.append(parameter)
                    shards32.append(main)
                else:
                    parameter.main_param, parameter.main_param_sharded = main, True
                    float16.append(parameter)
                    shards16.append(shard)
                    mains.append(main)
                owned.append(main)
            group_range["orig_group"]["params"] = owned
        return lists

    @torch.no_grad()
    def _copy_main_params_to_model_params(self):
        """After a step, which has made the bytes of quantized weights. Float32 parameters are their
        own masters.
        """
        if self.is_stub_optimizer:
            return
        groups = zip(self.shard_float16_groups, self.shard_fp32_from_float16_groups, strict=True)
        for shards, mains in groups:
            for shard, main in zip(shards, mains, strict=True):
                if shard is not None:
                    shard.copy_(main)

    def _remake_model(self) -> None:
        """Collective: all parameters, on all ranks, from masters that no step has made."""
        for chunk in self.model_chunks:
            for group in chunk.bucket_groups + chunk.expert_parallel_bucket_groups:
                if group.param_gather_handle is not None:  # it would bring old bytes later
                    group.start_param_sync(force_sync=True)  # which finishes it
        flat.quantize_master_weights(*self._shards, self.data_parallel_group)
        self._copy_main_params_to_model_params()
        for chunk in self.model_chunks:
            chunk.start_param_sync(force_sync=True)

    def _copy_model_params_to_main_params(self, state_dict=None):
        with borrowed.for_optimizer():
            super()._copy_model_params_to_main_params(state_dict)


def _model_shard(parameter: torch.Tensor, begin: int, end: int) -> torch.Tensor | None:
    """A plain parameter's elements, a view of its memory; of a quantized one None, for its bytes
    have no such view.
    """
    if isinstance(parameter, QuantizedTensor):
        return None
    return _with_attributes(parameter.detach().view(-1)[begin:end], parameter)


def _master_shard(parameter: torch.Tensor, begin: int, end: int) -> torch.Tensor:
    """float32 [end - begin], the value of a parameter's elements: a view of a float32 parameter's
    memory, memory of its own for all others.
    """
    value = parameter.detach()
    if isinstance(parameter, QuantizedTensor):
        kept = value.kept_value
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
