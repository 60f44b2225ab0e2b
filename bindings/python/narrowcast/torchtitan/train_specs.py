"""For torchtitan 0.2: a converter that a job names, and a train spec with FusedAdam."""

import dataclasses
import functools
from collections.abc import Callable

from torch import nn
from torchtitan.components import optimizer
from torchtitan.components.optimizer import OptimizersContainer
from torchtitan.protocols import model_converter, train_spec

from narrowcast.optimizer import FusedAdam
from narrowcast.torchtitan.conversion import convert_model


class Converter:
    """A model converter, "narrowcast" in `model.converters`. Its options are the job's section
    [narrowcast] (narrowcast.torchtitan.job_config). ValueError without a format; else as
    nc.convert.
    """

    def __init__(self, job_config, parallel_dims):
        self._options = getattr(job_config, "narrowcast", None)
        if self._options is None or not self._options.format:
            raise ValueError(
                'the model converter "narrowcast" needs a format: set job.custom_config_module = '
                '"narrowcast.torchtitan.job_config", and narrowcast.format to a name of '
                "nc.formats()"
            )

    def convert(self, model: nn.Module) -> None:
        """Before torchtitan shards the model, in place."""
        options = self._options
        convert_model(model, options.format, options.filter, options.parameters, options.products)

    def post_optimizer_hook(self, model) -> None:
        """FusedAdam has made the bytes."""


def build_optimizers(
    model_parts: list[nn.Module], optimizer_config, parallel_dims, ft_manager=None
) -> OptimizersContainer:
    """torchtitan's container with an nc.FusedAdam for each part, by the job's section [optimizer],
    whose `implementation` is of no meaning. NotImplementedError for another optimizer than AdamW
    and Adam, steps in the backward and torchft.
    """
    names = ("AdamW", "Adam")
    if optimizer_config.name not in names:
        raise NotImplementedError(
            f"optimizer.name is {optimizer_config.name}: nc.FusedAdam is {' or '.join(names)}"
        )
    if optimizer_config.early_step_in_backward:
        raise NotImplementedError(
            "nc.FusedAdam steps all parameters in one pass: unset optimizer.early_step_in_backward"
        )
    if ft_manager is not None and ft_manager.enabled:
        raise NotImplementedError("nc.FusedAdam has not been tried with torchft: disable it")
    options = {
        "lr": optimizer_config.lr,
        "betas": (optimizer_config.beta1, optimizer_config.beta2),
        "eps": optimizer_config.eps,
        "weight_decay": optimizer_config.weight_decay,
        "adamw": optimizer_config.name == "AdamW",
    }
    return OptimizersContainer(model_parts, FusedAdam, options)


def register(name: str) -> None:
    """Has a model of torchtitan, by its name, train with nc.FusedAdam. Call it in the module that
    `experimental.custom_import` names. ValueError if torchtitan does not know the model, or if one
    of the name is registered.
    """
    spec = train_spec.get_train_spec(name)
    build = functools.partial(_build_as_before, spec.build_optimizers_fn)
    train_spec.register_train_spec(name, dataclasses.replace(spec, build_optimizers_fn=build))


def _build_as_before(build: Callable, *args, **kwargs) -> OptimizersContainer:
    """What a spec's own function builds, which may do more than torchtitan's build_optimizers that
    it calls: balance the load of experts, say. NotImplementedError if it calls another.
    """
    if build is optimizer.build_optimizers:
        return build_optimizers(*args, **kwargs)
    own, optimizer.build_optimizers = optimizer.build_optimizers, build_optimizers
    try:
        container = build(*args, **kwargs)
    finally:
        optimizer.build_optimizers = own
    others = {type(one).__name__ for one in container.optimizers if not isinstance(one, FusedAdam)}
    if others:
        raise NotImplementedError(
            f"{build.__module__}.{build.__qualname__} makes {', '.join(sorted(others))} in its own "
            "way. Have it call narrowcast.torchtitan.build_optimizers, and leave out register()"
        )
    return container


model_converter.register_model_converter(Converter, "narrowcast")
