"""A picture of a format's bytes in characters: which elements the first bytes hold, and which
elements the first scales belong to.
"""

import math

from narrowcast import registry

_LINES, _CELLS = 3, 4


def block(sides) -> str:
    """A block's name: 1x32, or tensor."""
    return sides if isinstance(sides, str) else f"{sides[0]}x{sides[1]}"


def usage(f: registry.Format, name: str, rows: int, columns: int) -> list[str]:
    """The lines about one usage of a rows x columns weight. Elements are named row,column."""
    layout = getattr(f, name)
    repeated = (
        "" if layout.scale_per == layout.block else f", stored for each {block(layout.scale_per)}"
    )
    exchanged = ", stored with rows and columns exchanged" if layout.transposed else ""
    lines = [f"{name}: a scale for each {block(layout.block)}{repeated}{exchanged}"]
    try:
        f.check_holds(name, rows, columns)
    except ValueError as error:
        return [*lines, f"  {error}"]
    for what, buffer in zip(("data", "scales"), registry.buffers_of(name), strict=True):
        lines.append(f"  {what:<7} {size(f, buffer, rows, columns)}")
        cell = _data_cell if what == "data" else _scale_cell
        lines += _corner(layout, cell, f.used_shape(buffer, rows, columns), (rows, columns))
    return lines


def size(f: registry.Format, buffer: int, rows: int, columns: int) -> str:
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


def _corner(layout: registry.UsageLayout, cell, used, shape) -> list[str]:
    """The first cells of the first stored rows, without padding. `used`: a buffer's entries of a
    matrix of this shape.
    """
    if cell is _scale_cell and layout.block == "tensor":
        return ["    | all |"]
    count, length = used[0], used[1] // (_group(layout)[1] if cell is _data_cell else 1)
    cells = [
        [cell(layout, row, column, shape) for column in range(min(_CELLS, length))]
        for row in range(min(_LINES, count))
    ]
    if not any(cells):
        return []
    width = max(len(text) for line in cells for text in line)
    more = " | .." if length > _CELLS else " |"
    lines = ["    | " + " | ".join(text.ljust(width) for text in line) + more for line in cells]
    return [*lines, "    ."] if count > _LINES else lines


def _group(layout: registry.UsageLayout) -> tuple[int, int]:
    """The least elements that fill whole bytes, and how many bytes those are."""
    bits = math.lcm(8, layout.element_bits)
    return bits // layout.element_bits, bits // 8


def _data_cell(layout: registry.UsageLayout, row: int, group: int, _shape) -> str:
    """The elements of whole bytes, from the high bits to the low."""
    count, _ = _group(layout)
    places = ((row, group * count + index) for index in reversed(range(count)))
    return " ".join(f"{j},{i}" if layout.transposed else f"{i},{j}" for i, j in places)


def _scale_cell(layout: registry.UsageLayout, row: int, column: int, shape) -> str:
    """The elements that a stored scale belongs to."""
    place = (column, row) if layout.scale_transposed else (row, column)
    return ",".join(
        _run(at * side, min(at * side + side, end) - 1)
        for at, side, end in zip(place, layout.scale_per, shape, strict=True)
    )


def _run(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"
