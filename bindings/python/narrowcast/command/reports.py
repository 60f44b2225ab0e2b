"""Text for the command line: a list of formats, one format and its bytes, two side by side."""

import math
from collections.abc import Iterable, Sequence
from functools import partial

from narrowcast import registry

_LINES, _CELLS = 3, 4  # of a picture


def print_list() -> None:
    """A row for each loaded format, and for each state format."""
    rows = [
        ("format", "bits", "element", "scale", "rowwise", "columnwise", "gathered", "loaded from")
    ]
    for f in map(registry.format, registry.formats()):
        scale = f"{f.scale} + {f.tensor_scale}" if f.tensor_scale else f.scale
        blocks = _block(f.rowwise.block), _block(f.columnwise.block)
        bits = f"{f.bits_per_element:.4g}"
        rows.append((f.name, bits, f.element, scale, *blocks, f.gather, f.path))
    _print_columns(rows)
    print()
    states = map(registry.state_format, registry.state_formats())
    rows = [(s.name, f"{s.bits_per_element:.4g}", f"1x{s.block}", s.summary) for s in states]
    _print_columns([("state format", "bits", "block", ""), *rows])


def print_format(format: str, shape: tuple[int, int]) -> None:
    """Facts, a picture of the bytes, and their number for a weight. Of a state format facts."""
    if format in registry.state_formats():
        _print_state_format(registry.state_format(format))
        return
    f = registry.format(format)
    _print_facts(f, _facts_of_format(f))
    for usage in registry.USAGES:
        print()
        print("\n".join(_usage(f, usage, *shape)))


def _print_state_format(s: registry.StateFormat) -> None:
    facts = {
        "kind": f'state: of what an optimizer keeps, state_dtype="{s.name}"',
        "block": f"1x{s.block}, under a float32 scale",
        "bits per element": f"{s.bits_per_element:.6g}",
        "of both signs": f"int8 of the root {s.roots[0]}",
        "nonnegative": f"uint8 of the root {s.roots[1]}",
        "reference": s.reference,
    }
    _print_facts(s, facts)


def _print_facts(of: registry.Format | registry.StateFormat, facts: dict[str, str]) -> None:
    print(f"{of.name}: {of.summary}\n")
    for key, value in facts.items():
        print(f"  {key:<18}{value}")


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
            f"{name} block": _block(usage.block),
            f"{name} scale for each": _block(usage.scale_per),
            f"{name} scale padding": _block(usage.scale_pad),
            f"{name} data": order[usage.transposed],
            f"{name} scales": order[usage.scale_transposed],
        }
    return lines


def _sizes(f: registry.Format, rows: int, columns: int) -> dict[str, str]:
    """The buffers of a rows x columns weight."""
    sizes = {}
    for name in registry.USAGES:
        for what, buffer in zip(("data", "scales"), registry.buffers_of(name), strict=True):
            sizes[f"{rows}x{columns} {name} {what}"] = _size(f, buffer, rows, columns)
    return sizes


def _print_columns(rows: Iterable[Sequence[str]]) -> None:
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())


# ---- a picture in characters: which elements the first bytes hold, and the first scales ----


def _block(sides) -> str:
    """A block's name: 1x32, or tensor."""
    return sides if isinstance(sides, str) else f"{sides[0]}x{sides[1]}"


def _usage(f: registry.Format, name: str, rows: int, columns: int) -> list[str]:
    """The lines about one usage of a rows x columns weight. Elements are named row,column."""
    layout = getattr(f, name)
    repeated = (
        "" if layout.scale_per == layout.block else f", stored for each {_block(layout.scale_per)}"
    )
    exchanged = ", stored with rows and columns exchanged" if layout.transposed else ""
    lines = [f"{name}: a scale for each {_block(layout.block)}{repeated}{exchanged}"]
    try:
        f.check_holds(name, rows, columns)
    except ValueError as error:
        return [*lines, f"  {error}"]
    for what, buffer in zip(("data", "scales"), registry.buffers_of(name), strict=True):
        lines.append(f"  {what:<7} {_size(f, buffer, rows, columns)}")
        used = f.used_shape(buffer, rows, columns)
        if what == "data":
            size = math.lcm(8, layout.element_bits) // 8  # of elements that fill whole bytes
            lines += _corner(used[0], used[1] // size, partial(_data_cell, layout))
        elif layout.block == "tensor":
            lines.append("    | all |")
        else:
            lines += _corner(*used, partial(_scale_cell, layout, (rows, columns)))
    return lines


def _size(f: registry.Format, buffer: int, rows: int, columns: int) -> str:
    """A buffer's shape, dtype and bytes; or why it cannot hold a rows x columns weight."""
    try:
        f.check_holds(registry.USAGES[buffer // 2], rows, columns)
    except ValueError:
        return "cannot be held"
    shape, used = (of(buffer, rows, columns) for of in (f.buffer_shape, f.used_shape))
    dtype = f.buffer_dtype(buffer)
    padding = "" if shape == used else f", {_times(used)} of them used"
    kind = str(dtype).removeprefix("torch.")
    return f"{_times(shape)} {kind}, {math.prod(shape) * dtype.itemsize:,} bytes{padding}"


def _times(shape) -> str:
    return "x".join(map(str, shape))


def _corner(rows: int, columns: int, cell) -> list[str]:
    """The first cells of the first stored rows, without padding: cell(row, column)."""
    cells = [
        [cell(row, column) for column in range(min(_CELLS, columns))]
        for row in range(min(_LINES, rows))
    ]
    if not any(cells):
        return []
    width = max(len(text) for line in cells for text in line)
    more = " | .." if columns > _CELLS else " |"
    lines = ["    | " + " | ".join(text.ljust(width) for text in line) + more for line in cells]
    return [*lines, "    ."] if rows > _LINES else lines


def _data_cell(layout: registry.UsageLayout, row: int, group: int) -> str:
    """The elements of whole bytes, from the high bits to the low."""
    count = math.lcm(8, layout.element_bits) // layout.element_bits
    places = ((row, group * count + index) for index in reversed(range(count)))
    return " ".join(f"{j},{i}" if layout.transposed else f"{i},{j}" for i, j in places)


def _scale_cell(layout: registry.UsageLayout, shape, row: int, column: int) -> str:
    """The elements that a stored scale belongs to."""
    place = (column, row) if layout.scale_transposed else (row, column)
    return ",".join(
        _run(at * side, min(at * side + side, end) - 1)
        for at, side, end in zip(place, layout.scale_per, shape, strict=True)
    )


def _run(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"
