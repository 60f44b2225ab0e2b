"""In which order a user's filter takes a module and its name: narrowcast calls filter(name,
module), torchao filter(module, name). Its signature says which it is.
"""

import inspect

from torch import nn

_MODULES = ("module", "mod", "m", "layer")
_NAMES = ("name", "fqn", "path")


def takes_module_first(filter) -> bool:
    """Whether a filter is of torchao's order: its first argument is annotated as a module, or the
    second as a string; or, of arguments without annotation, the first is called module, mod, m or
    layer, or the second name, fqn or path. All others are called with the name first.
    """
    try:
        arguments = [*inspect.signature(filter).parameters.values()][:2]
    except (TypeError, ValueError):  # a function of C's may have no signature
        return False
    kinds = [_kind(one) for one in arguments] + [None, None]
    return kinds[0] == "module" or (kinds[0] is None and kinds[1] == "name")


def _kind(argument: inspect.Parameter) -> str | None:
    """What an argument is by its annotation, else by its name; None if neither says."""
    annotation = argument.annotation
    if annotation is str or annotation == "str":
        return "name"
    words = annotation if isinstance(annotation, str) else ""
    is_class = isinstance(annotation, type) and issubclass(annotation, nn.Module)
    if is_class or words.split(".")[-1] == "Module":
        return "module"
    if argument.name in _MODULES:
        return "module"
    return "name" if argument.name in _NAMES else None
