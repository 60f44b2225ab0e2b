"""The formats that a weight is multiplied with, where its products are scaled."""

from narrowcast import _C
from narrowcast.registry import loaded
from narrowcast.registry.loaded import Format


def partners_of(format: Format, matmul: str) -> tuple[Format, ...]:
    """The formats of inputs and of gradients; none for dequantized products. ValueError for an
    option that makes no sense.
    """
    if matmul not in ("dequantized", "scaled"):
        raise ValueError(f'matmul is "dequantized" or "scaled", not {matmul!r}')
    if matmul == "dequantized":
        return ()
    if format.matmul is None:
        able = [name for name in loaded.formats() if loaded.format(name).matmul]
        raise ValueError(
            f'matmul="scaled": {format.name} names no formats for activations and gradients. '
            f"Use one that does ({', '.join(able)}), or add [matmul] to its spec"
        )
    try:
        partners = tuple(map(loaded.format, (format.matmul.input, format.matmul.gradient)))
    except ValueError as error:
        raise ValueError(
            f'matmul="scaled": {format.name} casts inputs to {format.matmul.input} and '
            f"gradients to {format.matmul.gradient}, and {error}"
        ) from None
    _check_kinds(format, partners)
    return partners


def _check_kinds(format: Format, partners: tuple[Format, ...]) -> None:
    """ValueError if matrix units would multiply what the format's partners no longer are."""
    matmul = format.matmul
    built = matmul.forward, matmul.input_gradient, matmul.weight_gradient
    present = _C.product_kinds(format.plugin, *(one.plugin for one in partners))
    if present != tuple(one.number for one in built):
        names = " and ".join(dict.fromkeys(one.name for one in partners))
        raise ValueError(
            f'matmul="scaled": {format.name} was built when {names}, which its products name, '
            "had other facts than what is loaded: build it again, together with them "
            f"({format.path})"
        )
