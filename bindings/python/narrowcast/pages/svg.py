"""The picture of a format in memory, an SVG: of both usages the data and the scales as they are
stored, and the bytes that begin their rows. Every number and place follows from the format's facts.
"""

from collections.abc import Iterator
from pathlib import Path
from string import Template
from typing import NamedTuple
from xml.sax.saxutils import escape

_WIDTH, _MARGIN = 880, 24
_DATA_X, _SCALE_X = 72, 484  # of the corners of matrices; numbers of entries are to their left
_LINE = 17  # pixels from one line of text to the next
_SHOWN_BYTES = 6  # whole elements in every packing
_BIT = 14
_TWO_LINES = 30  # the height that a cell needs for them
_MOST_BLOCKS = 4  # along a side; of more, the first two and the last are shown

# The frame of a picture. Its styles have colours for light and for dark pages.
_SVG = Template(Path(__file__).with_name("layout.svg.in").read_text(encoding="utf-8"))


def picture(f: dict) -> str:
    """The picture of a format with these facts (facts.json)."""
    lines: list[str] = []
    y = _head(lines, f)
    for usage in ("rowwise", "columnwise"):
        y = _usage(lines, f, usage, y)
    y = _amax(lines, f, y)
    return _SVG.substitute(
        width=_WIDTH,
        height=y,
        card_width=_WIDTH - 1,
        card_height=y - 1,
        origin=f["origin"],
        name=f["name"],
        summary=_xml(f["summary"]),
        rows=f["shape"][0],
        columns=f["shape"][1],
        elements="\n".join(f"  {line}" for line in lines),
    )


# ---- parts: each adds its lines from y on, and returns the y below it ----


def _head(lines: list[str], f: dict) -> int:
    y = _MARGIN + 12
    lines.append(
        _text("title", _MARGIN, y, f"{f['name']}: {_times(f['shape'])} elements in memory")
    )
    second = (0, 0 if f["rowwise"]["block"] == "tensor" else 1)
    lines.append(_cell(_block_style(second), (_MARGIN, y + 16, 42, 20), "", _name(second)))
    explained = "a block, by its row and column among the blocks; its scale"
    lines.append(_text("", _MARGIN + 52, y + 30, explained))
    usages = f["rowwise"], f["columnwise"]
    zero_bits = f["code_bits"] < f["rowwise"]["element_bits"]
    if zero_bits or any(u["scale"]["used"] != u["scale"]["shape"] for u in usages):
        lines.append(_box("padding", (_SCALE_X, y + 16, 42, 20)))
        lines.append(_text("", _SCALE_X + 52, y + 30, "padding, zero"))
    return y + 52


def _usage(lines: list[str], f: dict, name: str, y: int) -> int:
    """A usage's two buffers, and the bytes that begin two stored rows."""
    usage = f[name]
    group = [f"<title>{name}</title>", _box("rule", (_MARGIN, y, _WIDTH - 2 * _MARGIN, 1))]
    bottom = _bytes(group, f, usage, _buffers(group, name, usage, y + 28) + 30)
    lines += ["<g>", *(f"  {line}" for line in group), "</g>"]
    return bottom + 22


def _buffers(lines: list[str], name: str, usage: dict, y: int) -> int:
    data, scale = usage["data"], usage["scale"]
    if usage["block"] == "tensor":
        shape, block, entries = "(1,)", data["used"], (1, 1)
        blocks, scales = "One block, the whole matrix.", "One scale for the whole matrix."
    else:
        # Stored scales of one block, in the matrix's own coordinates.
        down, across = (n // per for n, per in zip(usage["block"], usage["scale_per"], strict=True))
        shape, block = tuple(scale["shape"]), _turned(usage["block"], usage["transposed"])
        entries = _turned((down, across), usage["scale_transposed"])
        blocks, scales = f"Blocks of {_times(usage['block'])}.", "One entry a block."
        if down * across > 1:
            scales = f"An entry for each {_times(usage['scale_per'])}, so {down * across} a block."
        scales += " Transposed." * usage["scale_transposed"]
    blocks += " Transposed." * usage["transposed"]
    data_sides = _sides(data["used"], data["used"], block)
    scale_sides = _sides(scale["used"], scale["shape"], entries)
    corner = y + 4 * _LINE
    along = _along("elements", usage["transposed"]), _along("entries", usage["scale_transposed"])
    for x, buffer, caption, sides in (
        (_DATA_X, f"data  {data['type']} {tuple(data['shape'])}", blocks, along[0]),
        (_SCALE_X, f"scale_inv  {scale['type']} {shape}", scales, along[1]),
    ):
        lines.append(_text("name", x, y, f"{name}_{buffer}"))
        lines.append(_text("", x, y + _LINE, caption))
        lines.append(_text("tick", x, y + 2 * _LINE, sides))
    lines += _matrix(_DATA_X, corner, *data_sides, usage["transposed"], counted=False)
    lines += _matrix(_SCALE_X, corner, *scale_sides, usage["scale_transposed"], counted=True)
    return corner + max(_length(data_sides[0]), _length(scale_sides[0]))


def _along(what: str, transposed: bool) -> str:
    across, down = _turned(("columns", "rows"), transposed)
    return f"{what}: → along matrix {across}, ↓ along matrix {down}"


def _bytes(lines: list[str], f: dict, usage: dict, y: int) -> int:
    elements, row_bytes = usage["data"]["used"][1], usage["data"]["shape"][1]
    what = f"which have {elements} elements in {row_bytes} bytes each."
    lines.append(_text("", _DATA_X, y, f"The first bytes of two stored rows, {what}"))
    key = "A cell is an element of the matrix, named row,column. "
    key += "The lowest bit of a byte is on its left."
    lines.append(_text("tick", _DATA_X, y + _LINE, key))
    y += _LINE + 10
    for row in (0, 1):
        lines += _row(f, usage, row, y)
        y += 50
    return y - 10


def _row(f: dict, usage: dict, row: int, y: int) -> Iterator[str]:
    """Two lines: the elements that begin a stored row over their bits, and the bytes below."""
    bits, width = usage["element_bits"], f["code_bits"] * _BIT
    line = _text("end tick", _DATA_X - 6, y + 15, f"row {row}")
    for i in range(_SHOWN_BYTES * 8 // bits):
        element = _turned((row, i), usage["transposed"])
        block = (0, 0)
        if usage["block"] != "tensor":
            block = [n // side for n, side in zip(element, usage["block"], strict=True)]
        x = _DATA_X + i * bits * _BIT
        line += _cell(_block_style(block), (x, y, width, 22), "", _name(element))
        if bits > f["code_bits"]:
            line += _box("padding", (x + width, y, bits * _BIT - width, 22), "zero bits")
    yield line + _text("tick", _DATA_X + _SHOWN_BYTES * 8 * _BIT + 8, y + 15, "…")
    first = row * usage["data"]["shape"][1]
    yield "".join(
        _cell("byte", (_DATA_X + i * 8 * _BIT, y + 22, 8 * _BIT, 18), "tick", f"byte {first + i}")
        for i in range(_SHOWN_BYTES)
    )


def _amax(lines: list[str], f: dict, y: int) -> int:
    """The value that both usages' buffers share."""
    if not f["tensor_amax"]:
        return y
    use = ", from which the scale of both usages is made."
    if f["tensor_scale"]:
        use = ": the tensor scale, a factor of all values of both usages."
    elif f["amax"] == "delayed":
        use = "; the scale is made from those of earlier steps."
    lines.append(_box("rule", (_MARGIN, y, _WIDTH - 2 * _MARGIN, 1)))
    lines.append(_text("name", _DATA_X, y + 28, "amax  float32 (1,)"))
    lines.append(_cell("block00", (_DATA_X, y + 38, 42, 22), "", "A"))
    what = "The largest magnitude of the whole tensor"
    lines.append(_text("", _DATA_X + 52, y + 53, what + use))
    return y + 82


# ---- a matrix as it is stored: its blocks, its padding, its numbers ----


class _Segment(NamedTuple):
    """A part of a side."""

    kind: str  # "block", "gap" (blocks that are not shown) or "padding"
    begin: int  # entries of the stored matrix along this side
    end: int
    block: int  # its number, if it is one
    at: int  # pixels from the matrix's corner
    length: int


class _Lengths(NamedTuple):
    """In pixels, of the parts of a side: wide enough for a block's name and a number of entries,
    high enough for a line of text. A block's length grows with the logarithm of its entries, up to
    that of 128.
    """

    block: int
    doubling: int
    gap: int
    padding: int


_DOWN, _ACROSS = _Lengths(21, 3, 22, 26), _Lengths(46, 5, 30, 48)


def _sides(used, stored, block) -> tuple[list[_Segment], list[_Segment]]:
    """The side down and the side across of a stored matrix."""
    return tuple(map(side, used, stored, block, (_DOWN, _ACROSS)))


def side(used: int, stored: int, block: int, lengths: _Lengths = _DOWN) -> list[_Segment]:
    """Of a side with `used` entries, `block` of them a block, and padding up to `stored`: the first
    blocks, a gap, the last block and the padding, each with its true numbers.
    """
    count = -(-used // block)
    shown = range(count) if count <= _MOST_BLOCKS else (0, 1, count - 1)
    parts = [("block", n * block, min(n * block + block, used), n) for n in shown]
    if count > _MOST_BLOCKS:
        parts.insert(2, ("gap", 2 * block, (count - 1) * block, 0))
    if used < stored:
        parts.append(("padding", used, stored, 0))
    segments, at = [], 0
    for kind, begin, end, number in parts:
        length = getattr(lengths, kind)
        if kind == "block":
            length += lengths.doubling * min((end - begin).bit_length(), 8)
        segments.append(_Segment(kind, begin, end, number, at, length))
        at += length
    return segments


def _length(segments: list[_Segment]) -> int:
    return segments[-1].at + segments[-1].length


def _matrix(x, y, down, across, exchanged: bool, counted: bool) -> Iterator[str]:
    """`exchanged`: stored columns are rows of the matrix; `counted`: a cell tells how many entries
    it has.
    """
    yield "".join(_text("middle tick", x + at, y - 6, str(n)) for n, at in _ticks(across))
    yield "".join(_text("end tick", x - 6, y + at + 4, str(n)) for n, at in _ticks(down))
    for row in down:
        cells = ""
        for column in across:
            area = (x + column.at, y + row.at, column.length, row.length)
            kinds = row.kind, column.kind
            if "padding" in kinds:
                continue
            if "gap" in kinds:
                cells += _label("tick", area, "…")
                continue
            entries = (row.end - row.begin) * (column.end - column.begin)
            block = _turned((row.block, column.block), exchanged)
            cells += _block(area, block, entries if counted else 1)
        if cells:
            yield cells
    yield from _padding(x, y, down, across)
    yield _box("frame", (x, y, _length(across), _length(down)))


def _ticks(segments: list[_Segment]) -> list[tuple[int, int]]:
    """The entry that each segment begins with and the end, and where they are."""
    return [*((s.begin, s.at) for s in segments), (segments[-1].end, _length(segments))]


def _block(area, block, entries: int) -> str:
    """A block's part of the buffer, with the block's numbers in the matrix."""
    style, name, (x, y, width, height) = _block_style(block), _name(block), area
    if entries == 1:
        return _cell(style, area, "", name)
    if height < _TWO_LINES:
        return _cell(style, area, "tick", f"{name} ×{entries}")
    half = height // 2
    upper = _label("", (x, y + 2, width, half), name)
    return _box(style, area) + upper + _label("tick", (x, y + half - 2, width, half), f"×{entries}")


def _padding(x, y, down, across) -> Iterator[str]:
    """The zeros beside the used entries, and those below."""
    right, bottom = across[-1], down[-1]
    below = bottom.kind == "padding"
    if right.kind == "padding":
        rows, height = (bottom.begin, bottom.at) if below else (bottom.end, _length(down))
        yield _zeros((x + right.at, y, right.length, height), (rows, right.end - right.begin))
    if below:
        area = (x, y + bottom.at, _length(across), bottom.length)
        yield _zeros(area, (bottom.end - bottom.begin, right.end))


def _zeros(area, shape) -> str:
    x, y, width, height = area
    plate = (x + width // 2 - 18, y + height // 2 - 8, 36, 16)
    box = _box("padding", area, f"zero padding: {_times(shape)}")
    return box + _cell("plate", plate, "tick", "zeros")


def _turned(pair, exchange: bool):
    return pair[::-1] if exchange else pair


# ---- elements of SVG, in whole pixels: an area is (x, y, width, height) ----


def _box(style: str, area, title: str = "") -> str:
    """`title`: what a reader is told who points at it."""
    x, y, width, height = area
    rect = f'<rect class="{style}" x="{x}" y="{y}" width="{width}" height="{height}"'
    return f"{rect}><title>{title}</title></rect>" if title else f"{rect}/>"


def _text(style: str, x: int, y: int, text: str) -> str:
    styled = f'class="{style}" ' if style else ""
    return f'<text {styled}x="{x}" y="{y}">{_xml(text)}</text>'


def _label(style: str, area, text: str) -> str:
    """Text around the middle of an area."""
    x, y, width, height = area
    return _text(f"middle {style}".rstrip(), x + width // 2, y + height // 2 + 4, text)


def _cell(style: str, area, text_style: str, text: str) -> str:
    return _box(style, area) + _label(text_style, area, text)


def _block_style(block) -> str:
    """One style for each of four neighbours, so that a block is found again."""
    return f"block{block[0] % 2}{block[1] % 2}"


def _name(place) -> str:
    return f"{place[0]},{place[1]}"


def _times(shape) -> str:
    return f"{shape[0]} × {shape[1]}"


def _xml(text: str) -> str:
    return escape(text, {'"': "&quot;"})
