"""Options of nc.convert."""

from __future__ import annotations

from typing import NamedTuple

from torch import nn

from narrowcast import _C, registry


class Options(NamedTuple):
    """`recompute`: None for "auto"."""

    recompute: bool | None
    products: str
    trainable: bool | None

    def keeps_master(self, weight: nn.Parameter) -> bool:
        return weight.requires_grad if self.trainable is None else self.trainable

    @staticmethod
    def checked(recompute, products: str, trainable) -> Options:
        """As a caller gives them. ValueError for one that makes no sense."""
        if recompute not in (True, False, "auto"):
            raise ValueError(f'recompute is True, False or "auto", not {recompute!r}')
        if trainable not in (True, False, None):
            raise ValueError(f"trainable is True, False or None, not {trainable!r}")
        recompute = None if recompute == "auto" else bool(recompute)
        return Options(recompute, products, None if trainable is None else bool(trainable))


def partners_of(format: registry.Format, products: str) -> tuple[registry.Format, ...]:
    """The formats of inputs and of gradients; none for decoded products. ValueError for an option
    that makes no sense.
    """
    if products not in ("decoded", "scaled"):
        raise ValueError(f'products is "decoded" or "scaled", not {products!r}')
    if products == "decoded":
        return ()
    if format.products is None:
        able = [name for name in registry.formats() if registry.format(name).products]
        raise ValueError(
            f'products="scaled": {format.name} names no formats for activations and gradients. '
            f"Use one that does ({', '.join(able)}), or add [products] to its spec"
        )
    try:
        partners = tuple(map(registry.format, (format.products.input, format.products.gradient)))
    except ValueError as error:
        raise ValueError(
            f'products="scaled": {format.name} casts inputs to {format.products.input} and '
            f"gradients to {format.products.gradient}, and {error}"
        ) from None
    _check_kinds(format, partners)
    return partners


def _check_kinds(format: registry.Format, partners: tuple[registry.Format, ...]) -> None:
    """ValueError if matrix units would multiply what the format's partners no longer are."""
    products = format.products
    built = products.forward, products.input_gradient, products.weight_gradient
    present = _C.product_kinds(format.plugin, *(one.plugin for one in partners))
    if present != tuple(one.number for one in built):
        names = " and ".join(dict.fromkeys(one.name for one in partners))
        raise ValueError(
            f'products="scaled": {format.name} was built when {names}, which its products name, '
            "had other facts than what is loaded: build it again, together with them "
            f"({format.path})"
        )


def check_options(format: str, products: str) -> None:
    """ValueError or TypeError unless there is the format, and it has such products."""
    partners_of(registry.format(format), products)
