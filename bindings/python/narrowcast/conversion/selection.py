"""Which parameters of a model nc.convert takes, and a warning of large parts that its default
leaves as they are.
"""

from __future__ import annotations

import fnmatch
import warnings
from collections.abc import Callable, Iterable

from torch import nn

from narrowcast.master import MasterWeight
from narrowcast.parallel import experts
from narrowcast.tensor import QuantizedTensor, dtensors

# A weight that is to be converted: its name, the parameter, and every place that holds it, as a
# module and the name of an attribute.
Weight = tuple[str, nn.Parameter, list[tuple[nn.Module, str]]]
Filter = Callable[[str, nn.Module], bool] | str | Iterable[str] | None
Parameters = Callable[[str, nn.Parameter], bool] | str | Iterable[str] | None


def default_filter(name: str, module: nn.Module) -> bool:
    """That of nc.convert: every nn.Linear but routers, and experts."""
    if isinstance(module, nn.Linear):
        return not experts.is_router(name, module)
    return experts.are_experts(name, module)


def choose(
    model: nn.Module, filter: Filter, parameters: Parameters = None
) -> tuple[list[Weight], set[str]]:
    """The weights that the two choose, and the names of those that the default alone does.
    ValueError if there is none, if a pattern chooses none, and if a choice that is not the default
    divides a shared parameter.
    """
    by_module = _choice("filter", filter, default_filter, "nn.Linear or experts")
    by_name = _choice("parameters", parameters, _is_matrix, "floating parameter of 2 dimensions")
    found: dict[int, Weight] = {}  # by the id of the parameter
    left_out: dict[int, str] = {}
    explicit: set[int] = set()
    for path, module in model.named_modules():
        wanted = experts.weights_of(module) if by_module(path, module) else []
        for attribute, parameter in module._parameters.items():
            if parameter is None:
                continue
            name, key = _name(path, attribute), id(parameter)
            named = by_name(name, parameter)
            if not named and attribute not in wanted:
                left_out.setdefault(key, name)
                continue
            found.setdefault(key, (name, parameter, []))[-1].append((module, attribute))
            if named or filter is not default_filter:
                explicit.add(key)
    for key in found.keys() & left_out.keys():
        name, *_ = found.pop(key)
        if key in explicit:
            raise ValueError(
                f"{name} is the same parameter as {left_out[key]}, and the filter leaves that out. "
                "Let the filter choose both or neither"
            )
    for choice in (by_module, by_name):
        if isinstance(choice, _Patterns):
            choice.check()
    if not found:
        raise ValueError(
            "the filter, a function of (name, module), chooses no module of the model whose weight "
            "is its alone (the default chooses every nn.Linear, and experts). parameters= chooses "
            "any, by patterns of names: nc.convert(model, format, filter=None, "
            'parameters="*.c_*.weight"), as for GPT-2'
        )
    return [*found.values()], {one[0] for key, one in found.items() if key not in explicit}


def places(model: nn.Module) -> dict[nn.Parameter, list[tuple[str, nn.Module, str]]]:
    """Of every parameter the places that hold it: the name, the module and the attribute. In the
    order of the model's modules, the same on all ranks.
    """
    found: dict[nn.Parameter, list[tuple[str, nn.Module, str]]] = {}
    for path, module in model.named_modules():
        for attribute, parameter in module._parameters.items():
            if parameter is not None:
                place = _name(path, attribute), module, attribute
                found.setdefault(parameter, []).append(place)
    return found


def _name(path: str, attribute: str) -> str:
    return f"{path}.{attribute}" if path else attribute


# ---- choices: functions of a name and what bears it ----


def _choice(option: str, given, eligible: Callable, kind: str) -> Callable:
    """What a user has given for an option: None, a function, a pattern or a list of them."""
    if given is None:
        return lambda name, bearer: False
    return given if callable(given) else _Patterns(option, given, eligible, kind)


def _is_matrix(name: str, parameter: nn.Parameter) -> bool:
    return parameter.dim() >= 2 and parameter.is_floating_point()


class _Patterns:
    """By patterns as of fnmatch, among those that `eligible` lets pass. Each must find something:
    one that does not is mistyped.
    """

    def __init__(self, option: str, patterns, eligible: Callable, kind: str):
        listed = [patterns] if isinstance(patterns, str) else patterns
        self._option, self._eligible, self._kind = option, eligible, kind
        self._found = dict.fromkeys(listed, False)
        self._seen: list[str] = []

    def __call__(self, name: str, bearer) -> bool:
        if not self._eligible(name, bearer):
            return False
        self._seen.append(name)
        matching = [one for one in self._found if fnmatch.fnmatchcase(name, one)]
        self._found.update(dict.fromkeys(matching, True))
        return bool(matching)

    def check(self) -> None:
        """ValueError if a pattern has found nothing."""
        for pattern, found in self._found.items():
            if not found:
                there = f"names are such as {self._seen[0]!r}" if self._seen else "there is none"
                raise ValueError(
                    f"{self._option}: the pattern {pattern!r} matches the name of no {self._kind} "
                    f"({there}; * stands for any part of a name, dots included)"
                )


# ---- what is left out ----

_NOTABLE = 0.1  # of a model's elements


def warn_of_left_out(model: nn.Module) -> None:
    """A UserWarning, after a conversion by default, if a tenth of the model's elements or more is
    left in matrices, or stacks of them, that are neither tables nor kernels of convolutions.
    """
    left = {
        id(one): (name, one)
        for one, held in places(model).items()
        for name, module, _ in held
        if one.dim() in (2, 3)
        and one.is_floating_point()
        and not isinstance(module, (nn.Embedding, nn.EmbeddingBag))
        and not experts.is_of_one_matrix(module)
        and not isinstance(dtensors.local_of(one), (QuantizedTensor, MasterWeight))
    }
    share = sum(one.numel() for _, one in left.values())
    share /= max(1, sum(one.numel() for one in model.parameters()))
    if share < _NOTABLE:
        return
    name = next(iter(left.values()))[0]
    pattern = ".".join("*" if part.isdigit() else part for part in name.split("."))
    warnings.warn(
        f"nc.convert leaves {share:.0%} of the model's elements as they are, in {len(left)} "
        f"parameters such as {name}: the default takes nn.Linear, and stacks of matrices in "
        "modules that are called experts. parameters= chooses any, by patterns of names: "
        f'nc.convert(model, format, parameters="{pattern}")',
        stacklevel=3,  # the caller of nc.convert
    )
