"""Which weights share the scale of the tensor: nc.convert's share_scale."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from torch import nn

from narrowcast.registry import Format
from narrowcast.tensor.scale_groups import ScaleGroup

if TYPE_CHECKING:
    from narrowcast.conversion.selection import Weight

ShareScale = Iterable[Iterable[str]] | bool | None
# What inference engines make one matrix of, by its names in transformers and torchtitan.
_FUSED = (
    ("q_proj", "k_proj", "v_proj"),
    ("gate_proj", "up_proj"),
    ("query", "key", "value"),
    ("wq", "wk", "wv"),
    ("w1", "w3"),
)
_LIBRARIES = ("transformers", "torchtitan")


def groups_of(
    model: nn.Module,
    weights: list[Weight],
    format: Format,
    share_scale: ShareScale,
    keeps_master: Callable[[nn.Parameter], bool],
) -> dict[str, ScaleGroup]:
    """The groups of weights that are converted, by the weights' names. ValueError if an entry of a
    user's own chooses no two weights below one module, one that another entry has chosen, or
    weights with a master and without. TypeError for what is no list of tuples of names.
    """
    by_default = share_scale is None or share_scale is True
    entries = [*_FUSED] if by_default else _checked(share_scale or ())
    parameters = {name: parameter for name, parameter, _ in weights}
    groups: dict[str, ScaleGroup] = {}
    for entry in entries:
        found = [*_places(parameters, entry).items()]
        if by_default:
            found = [
                (place, names)
                for place, names in found
                if place[1] in ("", "weight.")
                and (share_scale is True or _is_of_library(model, place[0]))
                and len({keeps_master(parameters[name]) for name in names}) == 1
            ]
        elif not found:
            raise ValueError(
                f"share_scale: no two of {', '.join(map(repr, entry))} are beside each other among "
                f"the weights that are converted, such as {weights[0][0]!r}. An entry has names as "
                'of modules, ("q_proj", "k_proj", "v_proj"), which are below one module'
            )
        for (path, _), names in found:
            _check(names, groups, {name: keeps_master(parameters[name]) for name in names})
            if format.tensor_amax:
                shapes = [tuple(parameters[name].shape) for name in names]
                group = ScaleGroup(model.get_submodule(path), names, shapes)
                groups.update(dict.fromkeys(names, group))
    return groups


def _checked(share_scale: Iterable) -> list[tuple[str, ...]]:
    entries = [*share_scale]
    if any(isinstance(one, str) for one in entries):
        raise TypeError(
            "share_scale is a list of tuples of names, such as "
            f'[("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")], not {share_scale!r}'
        )
    return [tuple(one) for one in entries]


def _places(parameters: Iterable[str], entry: Iterable[str]) -> dict[tuple[str, str], list[str]]:
    """The names that contain one of an entry's, two or more that differ in nothing else: by the
    path of the module before it, and what follows it.
    """
    found: dict[tuple[str, str], list[str]] = {}
    for part in entry:
        for name in parameters:
            before, there, after = f".{name}.".rpartition(f".{part}.")
            if there:
                after = after.replace("base_layer.", "")  # which peft puts into those it adapts
                found.setdefault((before.lstrip("."), after), []).append(name)
    return {place: names for place, names in found.items() if len(names) > 1}


def _is_of_library(model: nn.Module, path: str) -> bool:
    """Whether a module, or one that it is in, is of a class of a library or derived from one."""
    parts = path.split(".") if path else []
    modules = [model.get_submodule(".".join(parts[:count])) for count in range(len(parts) + 1)]
    return any(
        base.__module__.partition(".")[0] in _LIBRARIES
        for module in modules
        for base in type(module).__mro__
    )


def _check(names: list[str], groups: dict[str, ScaleGroup], masters: dict[str, bool]) -> None:
    if twice := [name for name in names if name in groups]:
        raise ValueError(f"share_scale: two entries choose {', '.join(twice)}")
    if len(set(masters.values())) > 1:
        trained = [name for name, keeps in masters.items() if keeps]
        raise ValueError(
            f"share_scale: of {', '.join(names)} only {', '.join(trained)} would be trained, and "
            "the bytes of the others cannot follow. Convert all with trainable=True, or none"
        )
