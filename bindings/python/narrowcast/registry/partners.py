"""The formats that a weight is multiplied with, where its products are scaled."""

from narrowcast import _C
from narrowcast.registry import loaded
from narrowcast.registry.loaded import Format


def partners_of(format: Format, matmul: str) -> tuple[Format, ...]:
    """The formats of inputs and of gradients; none for dequantized products. ValueError for an
    option that makes no sense, and if the partners are not what the format was built for.
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
    matmul = format.matmul
    partners = loaded.format(matmul.input), loaded.format(matmul.gradient)
    built = matmul.forward, matmul.input_gradient, matmul.weight_gradient
    present = _C.product_kinds(format.plugin, *(one.plugin for one in partners))
    if present != tuple(one.number for one in built):
        raise ValueError(
            f'matmul="scaled": {format.name} was built when {matmul.input} and {matmul.gradient}, '
            "which its products name, had other facts than what is loaded: build it again, "
            f"together with them ({format.path})"
        )
    return partners
