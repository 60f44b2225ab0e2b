"""Text for the command line: a list of formats, one, two side by side, and the operator table."""

from collections.abc import Iterable, Sequence

from narrowcast import registry
from narrowcast.command import picture


def print_list() -> None:
    """A row for each loaded format."""
    rows = [
        ("format", "bits", "element", "scale", "rowwise", "columnwise", "gathered", "loaded from")
    ]
    for f in map(registry.format, registry.formats()):
        scale = f"{f.scale} + {f.tensor_scale}" if f.tensor_scale else f.scale
        blocks = picture.block(f.rowwise.block), picture.block(f.columnwise.block)
        bits = f"{f.bits_per_element:.4g}"
        rows.append((f.name, bits, f.element, scale, *blocks, f.gather, f.path))
    _print_columns(rows)


def print_format(format: str, shape: tuple[int, int]) -> None:
    """Facts, a picture of the bytes, and their number for a weight."""
    f = registry.format(format)
    print(f"{f.name}: {f.summary}\n")
    for key, value in _facts_of_format(f).items():
        print(f"  {key:<18}{value}")
    for usage in registry.USAGES:
        print()
        print("\n".join(picture.usage(f, usage, *shape)))


def print_difference(formats: Sequence[str], shape: tuple[int, int]) -> None:
    """The facts of two formats side by side; those that differ are marked."""
    table = [("", "", *formats)]
    sides = [
        _facts_of_format(f) | _layouts(f) | _sizes(f, *shape) for f in map(registry.format, formats)
    ]
    for key in sides[0]:
        values = [side[key] for side in sides]
        table.append(("*" if values[0] != values[1] else "", key, *values))
    _print_columns(table)
    differing = sum(row[0] == "*" for row in table)
    print(f"\n* {differing} of {len(table) - 1} facts differ")


def _facts_of_format(f: registry.Format) -> dict[str, str]:
    """What a format is as a whole."""
    under = f", under one {f.tensor_scale} scale of the tensor" if f.tensor_scale else ""
    derived = "rearranged from the rowwise bytes" if f.columnwise_derived else "from the master"
    gathered = "rowwise, in both passes" if f.gather == "rowwise" else "each pass its own usage"
    return {
        "element": f"{f.element}, {f.rowwise.element_bits} bits, {f.packing}",
        "scale": f"{f.scale}, rule {f.scale_rule}{under}",
        "amax": f"of the tensor, {f.amax}" if f.tensor_amax else "of a block",
        "columnwise": derived,
        "bits per element": f"{f.bits_per_element:.6g}, {f.wire_bits_per_element:.6g} on the wire",
        "row step": f"{f.row_step}: cuts at its multiples divide no block",
        "gathered": gathered,
        **_products(f),
        "published as": ", ".join(f.layouts) or "-",
        "reference": f.reference,
        "loaded from": f.path,
    }


def _products(f: registry.Format) -> dict[str, str]:
    """What linear layers with scaled products do."""
    names = ("forward", "input_gradient", "weight_gradient")
    lines = {name.replace("_", " "): "-" for name in names}
    if f.matmul is None:
        none = "none: the spec names no formats for activations and gradients"
        return {"scaled products": none} | lines
    p = f.matmul
    for line, name in zip(lines, names, strict=True):
        product = getattr(p, name)
        lines[line] = f"{product.kind}; matrix units: {product.machines}"
    rounding = ", rounded stochastically" if p.stochastic_gradient else ""
    return {"scaled products": f"input {p.input}, gradient {p.gradient}{rounding}"} | lines


def _layouts(f: registry.Format) -> dict[str, str]:
    """How each usage lies in memory."""
    lines = {}
    for name in registry.USAGES:
        usage = getattr(f, name)
        order = ("as the tensor", "exchanged")
        lines |= {
            f"{name} block": picture.block(usage.block),
            f"{name} scale for each": picture.block(usage.scale_per),
            f"{name} scale padding": picture.block(usage.scale_pad),
            f"{name} data": order[usage.transposed],
            f"{name} scales": order[usage.scale_transposed],
        }
    return lines


def _sizes(f: registry.Format, rows: int, columns: int) -> dict[str, str]:
    """The buffers of a rows x columns weight."""
    sizes = {}
    for name in registry.USAGES:
        for what, buffer in zip(("data", "scales"), registry.buffers_of(name), strict=True):
            sizes[f"{rows}x{columns} {name} {what}"] = picture.size(f, buffer, rows, columns)
    return sizes


def _print_columns(rows: Iterable[Sequence[str]]) -> None:
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())
