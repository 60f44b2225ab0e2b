"""get_megatron_optimizer, for models some of whose weights are quantized."""

from __future__ import annotations

from megatron.core import optimizer as optimizers

from narrowcast.megatron import borrowed
from narrowcast.megatron.optimizer import DistributedOptimizer
from narrowcast.optimizer import FusedAdam


def get_megatron_optimizer(config, model_chunks, *args, **kwargs):
    """Megatron's function, with its arguments: parameter groups, grad scaler and chain are
    Megatron's, the optimizers are narrowcast's DistributedOptimizer over nc.FusedAdam.

    config        Megatron's OptimizerConfig, with optimizer="adam" and use_distributed_optimizer
    model_chunks  modules in narrowcast.megatron.DistributedDataParallel

    NotImplementedError or ValueError, on every rank, for options that cannot work.
    """
    if not config.use_distributed_optimizer:
        raise ValueError(
            "narrowcast.megatron.get_megatron_optimizer makes distributed optimizers: set "
            "use_distributed_optimizer=True in OptimizerConfig and in "
            "DistributedDataParallelConfig, also for one rank"
        )
    if config.optimizer != "adam":
        raise NotImplementedError(
            f'narrowcast has no optimizer="{config.optimizer}" for Megatron: use "adam"'
        )
    if config.lr is None:
        raise ValueError("OptimizerConfig has no lr: nc.FusedAdam needs one to begin with")
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
        adamw=adam_w_mode,
    )
    for group, given in zip(adam.param_groups, params, strict=True):
        group["params"] = given["params"]
        # Megatron's own optimizer takes a checkpoint's groups as they are, and asks for this.
        group["bias_correction"] = True
    return adam
