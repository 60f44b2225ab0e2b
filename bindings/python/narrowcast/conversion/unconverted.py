"""Large parts of a model that nc.convert leaves as they are, perhaps against what its user wants:
stacks of matrices, and, by the default choice, matrices of modules that are no nn.Linear.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import NamedTuple

from torch import nn

from narrowcast.parallel import experts
from narrowcast.tensor import QuantizedTensor, dtensors

_NOTABLE = 0.1  # of a model's elements
_NO_LAYERS = (nn.Linear, nn.Embedding, nn.EmbeddingBag)  # a head may be tied, tables are rows

_OF_STACKS = (
    "three dimensions",
    "If they are experts, let the filter choose their modules too: of a module without `weight` it "
    "converts the parameters of three dimensions",
)
_OF_MATRICES = (
    "two dimensions",
    "Their modules are no nn.Linear, which is what the default takes; parameters= chooses any, by "
    'patterns of names: nc.convert(model, format, parameters="{}")',
)


class LeftOut(NamedTuple):
    """Parameters that are not converted: one's name, their number, their share of a model's
    elements, their dimensions, and what to do.
    """

    name: str
    count: int
    share: float
    dimensions: str
    advice: str


def of(model: nn.Module, chosen: set[int], is_default: bool) -> list[LeftOut]:
    """The kinds that are a tenth of a model or more, besides parameters of which the id() is in
    `chosen`. `is_default`: whether the choice is that of nobody.
    """
    kinds = [(_stacks(model), *_OF_STACKS)]
    if is_default:
        kinds.append((_matrices(model), *_OF_MATRICES))
    elements = max(sum(one.numel() for one in model.parameters()), 1)
    found = []
    for every, dimensions, advice in kinds:
        left = {
            id(one): (name, one)
            for name, one in every
            if id(one) not in chosen and not isinstance(dtensors.local_of(one), QuantizedTensor)
        }
        share = sum(one.numel() for _, one in left.values()) / elements
        if share >= _NOTABLE:
            name = next(iter(left.values()))[0]
            pattern = ".".join("*" if part.isdigit() else part for part in name.split("."))
            found.append(LeftOut(name, len(left), share, dimensions, advice.format(pattern)))
    return found


def warn_of(every: list[LeftOut]) -> None:
    """A UserWarning for each kind."""
    for one in every:
        warnings.warn(
            f"nc.convert leaves {one.share:.0%} of the model's elements as they are, in "
            f"{one.count} parameters of {one.dimensions} such as {one.name}. {one.advice}",
            stacklevel=3,
        )


def _stacks(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    for path, module in model.named_modules():
        for attribute in experts.stacks(module):
            yield _joined(path, attribute), module._parameters[attribute]


def _matrices(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    for path, module in model.named_modules():
        if isinstance(module, _NO_LAYERS):
            continue
        for attribute, parameter in module._parameters.items():
            if parameter is not None and parameter.dim() == 2 and parameter.is_floating_point():
                yield _joined(path, attribute), parameter


def _joined(path: str, attribute: str) -> str:
    return f"{path}.{attribute}" if path else attribute
