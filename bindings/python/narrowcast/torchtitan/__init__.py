"""torchtitan 0.3 with weights in narrow formats: a model converter, and nc.optim in torchtitan's
container of optimizers (docs/libraries.md).
"""

from dataclasses import dataclass, field, fields
from typing import Any

from torchtitan.components.optimizer import OptimizersContainer, ParamGroupConfig
from torchtitan.protocols.model import ModelConfigConverter

from narrowcast.conversion.convert import convert
from narrowcast.optim import Adam, AdamW


class Converter(ModelConfigConverter):
    """A model converter: the model that the configuration builds is converted before torchtitan
    shards it, as nc.convert does. NotImplementedError for tensor and expert parallelism by another
    backend than "partial_dtensor".
    """

    @dataclass(kw_only=True, slots=True)
    class Config(ModelConfigConverter.Config):
        format: str
        """A name of nc.formats()"""

        filter: list[str] = field(default_factory=list)
        """Patterns of names of modules; none: nc.convert's default"""

        parameters: list[str] = field(default_factory=list)
        """Patterns of names of parameters, besides"""

        matmul: str = "dequantized"
        """Of linear layers: "dequantized" or "scaled\""""

    def __init__(self, config: Config):
        self._config = config

    def convert(self, model_config):
        """The same configuration, of which build() makes a converted model."""
        kind = _converted(type(model_config), self._config)
        return kind(**{f.name: getattr(model_config, f.name) for f in fields(kind) if f.init})


def _converted(kind: type, options: Converter.Config) -> type:
    """A class of configurations which differs from a model's in what it builds."""

    class Converted(kind):
        def update_from_config(self, *, config, **rest):
            _check_backend(config.parallelism)
            return kind.update_from_config(self, config=config, **rest)

        def build(self, **runtime):
            model = kind.build(self, **runtime)
            given = {"parameters": list(options.parameters) or None, "matmul": options.matmul}
            if options.filter:
                given["filter"] = list(options.filter)
            return convert(model, options.format, **given)

    Converted.__name__, Converted.__qualname__ = kind.__name__, kind.__qualname__
    return Converted


def _check_backend(parallelism) -> None:
    """Of the backends partial_dtensor alone cuts weights by distribute_tensor."""
    degrees = parallelism.tensor_parallel_degree, parallelism.expert_parallel_degree
    if parallelism.spmd_backend != "partial_dtensor" and max(degrees) > 1:
        raise NotImplementedError(
            f"tensor or expert parallelism with spmd_backend = {parallelism.spmd_backend!r}, which "
            'cuts weights in a way of its own: set parallelism.spmd_backend = "partial_dtensor"'
        )


class Optimizers(OptimizersContainer):
    """torchtitan's container with nc.optim's AdamW and Adam in the place of torch's;
    `implementation` is of no meaning. NotImplementedError for others.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(OptimizersContainer.Config):
        pass

    @staticmethod
    def _resolve_optimizer_factory(name: str):
        known = {"AdamW": AdamW, "Adam": Adam}
        if name not in known:
            raise NotImplementedError(f"optimizer_name is {name}: known are {', '.join(known)}")
        return known[name]

    @staticmethod
    def _build_impl_kwargs(config) -> dict[str, Any]:
        return {}

    def state_dict(self) -> dict[str, Any]:
        self._make_state()
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._make_state()
        super().load_state_dict(state_dict)

    def _make_state(self) -> None:
        """Where torchtitan would make it by a step, which counts, and which histories remember."""
        for optimizer in self.optimizers:
            optimizer.make_state()


def fused_adam(lr: float = 8e-4, **options: Any) -> Optimizers.Config:
    """As torchtitan's default_adamw: one group of all parameters, options of nc.optim.AdamW."""
    options = {"lr": lr, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1, **options}
    group = ParamGroupConfig(pattern=".*", optimizer_name="AdamW", optimizer_kwargs=options)
    return Optimizers.Config(param_groups=[group])
