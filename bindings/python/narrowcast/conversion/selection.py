"""Which parameters of a model nc.convert takes, and a warning of large parts that it leaves as they
are, perhaps against what its user wants.
"""

from __future__ import annotations

import fnmatch
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator

import torch
from torch import nn

from narrowcast.parallel import experts
from narrowcast.tensor import QuantizedTensor, dtensors

# A weight that is to be converted: its name, the parameter, and every place that holds it (or one
# over the same memory), as a module and the name of an attribute.
Weight = tuple[str, nn.Parameter, list[tuple[nn.Module, str]]]
Filter = Callable[[str, nn.Module], bool] | str | Iterable[str] | None
Parameters = Callable[[str, nn.Parameter], bool] | str | Iterable[str] | None


def default_filter(name: str, module: nn.Module) -> bool:
    """That of nc.convert: every nn.Linear, and experts."""
    return isinstance(module, nn.Linear) or experts.are_experts(name, module)


def choose(
    model: nn.Module, filter: Filter, parameters: Parameters = None
) -> tuple[list[Weight], set[str]]:
    """The weights that the two choose, and the names of those that the default alone does.
    ValueError if there is none, if a pattern chooses none, if a chosen module has no weight, and if
    a choice that is not the default divides a shared parameter; TypeError for what is no choice.
    """
    by_module, by_name = _module_choice(filter), _parameter_choice(parameters)
    found: dict[Hashable, Weight] = {}
    left_out: dict[Hashable, str] = {}
    explicit: set[Hashable] = set()
    for path, module in model.named_modules():
        wanted = experts.weights_of(module) if by_module(path, module) else []
        for attribute, parameter in module._parameters.items():
            if parameter is None:
                continue
            name, key = _path(path, attribute), _identity(parameter)
            named = by_name(name, parameter)
            if not named and attribute not in wanted:
                left_out.setdefault(key, name)
                continue
            first, tied, places = found.setdefault(key, (name, parameter, []))
            if parameter.requires_grad and not tied.requires_grad:
                found[key] = first, parameter, places
            places.append((module, attribute))
            if named or filter is not default_filter:
                explicit.add(key)
    tied = [key for key in found if key in left_out]
    for key in tied:
        if key in explicit:
            raise _divided(found[key][0], left_out[key])
    shared = {found.pop(key)[0]: left_out[key] for key in tied}
    for choice in (by_module, by_name):
        if isinstance(choice, _Patterns):
            choice.check()
    if not found:
        raise _nothing(filter, shared)
    return [*found.values()], {one[0] for key, one in found.items() if key not in explicit}


def _identity(parameter: nn.Parameter) -> Hashable:
    """Equal for parameters that modules share: one object, or several that look at the same memory
    in the same way, as `b.weight.data = a.weight.data` leaves them.
    """
    value = parameter.detach()
    if type(value) is not torch.Tensor or value.layout != torch.strided or not value.data_ptr():
        return id(parameter)
    return value.data_ptr(), value.dtype, value.shape, value.stride()


def _divided(name: str, other: str) -> ValueError:
    return ValueError(
        f"{name} is the same parameter as {other}, or shares its memory, and the filter leaves "
        "that out. Let the filter choose both or neither"
    )


def _nothing(filter: Filter, shared: dict[str, str]) -> ValueError:
    tied = "".join(f"; {name} is left out, for it is {other} too" for name, other in shared.items())
    is_own = callable(filter) and filter is not default_filter
    called = "; it was called with (name, module)" if is_own else ""
    return ValueError(
        "the filter chooses no module of the model, so there is nothing to convert (the default "
        f"chooses every nn.Linear, and experts{tied}{called}). parameters= chooses others, of any "
        "module, by the patterns of their names: nc.convert(model, format, filter=None, "
        'parameters="*.c_*.weight"), as for GPT-2'
    )


# ---- choices: functions of a name and what bears it ----


def _module_choice(filter: Filter):
    if filter is None:
        return _chooses_none
    if filter is default_filter:
        return _is_default
    if callable(filter):
        return _with_weights(filter)
    return _Patterns("filter", filter, _is_default, "nn.Linear or experts")


def _chooses_none(name: str, bearer) -> bool:
    return False


def _is_default(name: str, module: nn.Module) -> bool:
    return default_filter(name, module) and bool(experts.weights_of(module))


def _parameter_choice(parameters: Parameters):
    if parameters is None:
        return _chooses_none
    if callable(parameters):
        return parameters
    return _Patterns("parameters", parameters, _is_matrix, "floating parameter of 2 dimensions")


def _is_matrix(name: str, parameter: nn.Parameter) -> bool:
    return parameter.dim() >= 2 and parameter.is_floating_point()


def _with_weights(filter):
    """A user's function over modules. ValueError if it chooses one without weight."""

    def choose(path: str, module: nn.Module) -> bool:
        wanted = filter(path, module)
        if wanted and not experts.weights_of(module):
            raise ValueError(
                f"the filter chooses {path or 'the model'} ({type(module).__name__}), which has "
                "no parameter `weight`, and none of three dimensions (parameters= chooses any). "
                'Patterns leave it out: filter="*" takes every linear layer that has one'
            )
        return bool(wanted)

    return choose


class _Patterns:
    """By patterns as of fnmatch, among those that `eligible` lets pass. Each must find something:
    one that does not is mistyped.
    """

    def __init__(self, option: str, patterns, eligible: Callable, kind: str):
        patterns = [patterns] if isinstance(patterns, str) else patterns
        listed = [*patterns] if isinstance(patterns, Iterable) else [patterns]
        for one in listed:
            if not isinstance(one, str):
                raise TypeError(
                    f"{option} is a function, a pattern or a list of patterns, which are strings; "
                    f"not {type(one).__name__}"
                )
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
        missing = [one for one, found in self._found.items() if not found]
        if missing or not self._found:
            there = f"names are such as {self._seen[0]!r}" if self._seen else "the model has none"
            what = f"the pattern {missing[0]!r}" if missing else "an empty list"
            raise ValueError(
                f"{self._option}: {what} matches the name of no {self._kind} ({there}; * stands "
                "for any part of a name, dots included)"
            )


# ---- what is left out ----

_NOTABLE = 0.1  # of a model's elements
_NO_LAYERS = (nn.Linear, nn.Embedding, nn.EmbeddingBag)  # a head may be tied, tables are rows

_OF_STACKS = (
    "parameters of three dimensions such as {}. If they are experts, let the filter choose their "
    "modules too: of a module without `weight` it converts the parameters of three dimensions"
)
_OF_MATRICES = (
    "parameters of two dimensions such as {}. Their modules are no nn.Linear, which is what the "
    "default takes; parameters= chooses any, by patterns of names: nc.convert(model, format, "
    'parameters="{}")'
)


def find_left_out(model: nn.Module, chosen: set[int], is_default: bool) -> list[str]:
    """Warnings of the kinds of parameters that are a tenth of a model or more, besides those of
    which the id() is in `chosen`. `is_default`: whether the user chose nothing.
    """
    kinds = [(_stacks(model), _OF_STACKS)]
    if is_default:
        kinds.append((_matrices(model), _OF_MATRICES))
    elements = max(sum(one.numel() for one in model.parameters()), 1)
    found = []
    for every, words in kinds:
        left = {
            id(one): (name, one)
            for name, one in every
            if id(one) not in chosen and not isinstance(dtensors.local_of(one), QuantizedTensor)
        }
        share = sum(one.numel() for _, one in left.values()) / elements
        if share >= _NOTABLE:
            name = next(iter(left.values()))[0]
            pattern = ".".join("*" if part.isdigit() else part for part in name.split("."))
            found.append(
                f"nc.convert leaves {share:.0%} of the model's elements as they are, in "
                f"{len(left)} {words.format(name, pattern)}"
            )
    return found


def warn_of_left_out(warnings_found: list[str]) -> None:
    for one in warnings_found:
        warnings.warn(one, stacklevel=3)  # the caller of nc.convert


def _stacks(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    for path, module in model.named_modules():
        for attribute in experts.stacks(module):
            yield _path(path, attribute), module._parameters[attribute]


def _matrices(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    for path, module in model.named_modules():
        if isinstance(module, _NO_LAYERS):
            continue
        for attribute, parameter in module._parameters.items():
            if parameter is not None and parameter.dim() == 2 and parameter.is_floating_point():
                yield _path(path, attribute), parameter


def _path(path: str, attribute: str) -> str:
    return f"{path}.{attribute}" if path else attribute
