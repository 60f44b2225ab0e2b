"""The generated pages' pictures against the layouts."""

import itertools
import json
import math
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

import pages
from narrowcast.pages import svg
from pages import FORMATS, NAMES, USAGES
from reference.layout import cdiv, pack, scale_shape


@pytest.fixture(scope="module", params=NAMES)
def drawn(request):
    """A format, its picture's root, and the cells of each usage."""
    root, usages = pages.picture(request.param)
    assert tuple(usages) == USAGES
    return FORMATS[request.param], root, usages


def blocks(cells):
    return [cell for cell in cells if cell.style.startswith("block")]


def frames_of(cells):
    """The outlines of a usage's data and scales."""
    frames = sorted((cell for cell in cells if cell.style == "frame"), key=lambda frame: frame.x)
    assert len(frames) == 2
    return frames


def matrices(cells):
    """What is drawn inside the two frames of a usage."""
    frames = frames_of(cells)
    inside = (
        [c for c in cells if c is not f and c.style != "plate" and f.holds(c.x + 1, c.y + 1)]
        for f in frames
    )
    return list(inside)


def test_pictures_stay_on_their_page(drawn):
    _, root, usages = drawn
    width, height = int(root.get("width")), int(root.get("height"))
    assert root.get("viewBox") == f"0 0 {width} {height}"
    for cells in usages.values():
        for cell in cells:
            assert cell.x >= 0 and cell.x + cell.width <= width
            assert cell.y >= 0 and cell.y + cell.height <= height
        solid = [c for c in cells if c.style.startswith(("block", "padding", "byte"))]
        for i, cell in enumerate(solid):
            assert not any(cell.overlaps(other) for other in solid[i + 1 :])


def test_padding_is_that_of_the_layout(drawn):
    fmt, _, usages = drawn
    for usage, cells in usages.items():
        facts = getattr(fmt, usage)
        padding = [pages.numbers(c.title) for c in matrices(cells)[1] if c.style == "padding"]
        used = 1
        if facts.block is not None:
            used = cdiv(pages.SHAPE[0], facts.per[0]) * cdiv(pages.SHAPE[1], facts.per[1])
        stored = math.prod(scale_shape(facts, pages.SHAPE))
        assert sum(rows * columns for rows, columns in padding) == stored - used
        assert not any(cell.style == "padding" for cell in matrices(cells)[0])


def corner_blocks(facts):
    """The blocks that a picture shows: (row, column), in the matrix's own coordinates."""
    grid = [
        1 if facts.block is None else cdiv(n, k)
        for n, k in zip(pages.SHAPE, facts.block or (1, 1), strict=True)
    ]
    shown = [range(n) if n <= 4 else (0, 1, n - 1) for n in grid]
    return {(row, column) for row in shown[0] for column in shown[1]}


def test_blocks_and_their_scales_lie_where_the_layout_says(drawn):
    fmt, _, usages = drawn
    for usage, cells in usages.items():
        facts = getattr(fmt, usage)
        sides = (facts.transposed, facts.scale_transposed)
        for inside, exchanged in zip(matrices(cells), sides, strict=True):
            drawn_at = {pages.numbers(c.texts[0])[:2]: (c.y, c.x) for c in blocks(inside)}
            assert set(drawn_at) == corner_blocks(facts)
            for one, (y, x) in drawn_at.items():
                for other, (other_y, other_x) in drawn_at.items():
                    a, b = (one[::-1], other[::-1]) if exchanged else (one, other)
                    assert (a[0] < b[0]) == (y < other_y)
                    assert (a[1] < b[1]) == (x < other_x)


def boundaries(used, stored, block):
    """Where the blocks that a picture shows begin along a stored side, and where it ends."""
    begins = [*range(0, used, block)]
    shown = begins if len(begins) <= 4 else [*begins[:3], begins[-1]]
    return [*shown, used] if used == stored else [*shown, used, stored]


def test_sides_are_numbered_as_they_are_stored(drawn):
    fmt, root, usages = drawn
    for usage, cells in usages.items():
        facts = getattr(fmt, usage)
        data, scales = (pages.ticks(root, usage, frame) for frame in frames_of(cells))
        block, per = facts.block or pages.SHAPE, facts.per or pages.SHAPE
        copies = [k // n for k, n in zip(block, per, strict=True)]
        used = [cdiv(n, k) for n, k in zip(pages.SHAPE, per, strict=True)]
        turn = -1 if facts.scale_transposed else 1
        used, copies = used[::turn], copies[::turn]
        stored = used if facts.block is None else scale_shape(facts, pages.SHAPE)
        for numbers, n, m, k in zip(scales[::-1], used, stored, copies, strict=True):
            assert numbers == boundaries(n, m, k)
        turn = -1 if facts.transposed else 1
        for numbers, n, k in zip(data[::-1], pages.SHAPE[::turn], block[::turn], strict=True):
            assert numbers == boundaries(n, n, k)


def test_scales_are_repeated_as_often_as_they_are_stored(drawn):
    fmt, _, usages = drawn
    for usage, cells in usages.items():
        facts = getattr(fmt, usage)
        for cell in blocks(matrices(cells)[1]):
            row, column, *copies = pages.numbers(" ".join(cell.texts))
            expected = 1
            if facts.block is not None:
                for at, n, k, per in zip(
                    (row, column), pages.SHAPE, facts.block, facts.per, strict=True
                ):
                    expected *= cdiv(min(n - at * k, k), per)
            assert (copies or [1]) == [expected]


def test_elements_lie_over_their_bits(drawn):
    """The first bytes, against the reference's packing of a matrix with a single code in it."""
    fmt, _, usages = drawn
    code = np.uint8((1 << fmt.element.bits) - 1)
    for usage, cells in usages.items():
        facts = getattr(fmt, usage)
        frame = max(cell.y + cell.height for cell in cells if cell.style == "frame")
        strips = [cell for cell in cells if cell.y > frame and cell.texts]
        byte_cells = [cell for cell in strips if cell.style == "byte"]
        bit = byte_cells[0].width // 8
        assert len(byte_cells) == 12
        assert len(blocks(strips)) == 12 * 8 // fmt.stored_bits
        for element in blocks(strips):
            codes = np.zeros(pages.SHAPE, np.uint8)
            codes[pages.numbers(element.texts[0])] = code
            flat = pack(codes, facts, fmt).reshape(-1)
            below = min(
                (b for b in byte_cells if b.y == element.y + element.height), key=lambda b: b.x
            )
            first = pages.numbers(below.texts[0])[0] * 8 + (element.x - below.x) // bit
            bits = np.flatnonzero(np.unpackbits(flat, bitorder="little"))
            assert bits.tolist() == list(range(first, first + element.width // bit))


def facts(name):
    return json.loads((pages.GENERATED / name / "facts.json").read_text(encoding="utf-8"))


def test_a_picture_is_small_and_plain():
    summary = 'A "quoted" <summary> & an accent é'
    drawings = [svg.picture(facts(name)) for name in NAMES]
    drawings.append(svg.picture(facts("nvfp4_1d") | {"name": "a" * 40, "summary": summary}))
    for drawing in drawings:
        assert len(drawing) < 30_000
        assert "<script" not in drawing
        assert "href" not in drawing
    assert ElementTree.fromstring(drawings[-1]).find(f"{pages.SVG}desc").text.startswith(summary)


def test_a_byte_that_an_element_does_not_fill_is_drawn_with_its_zeros():
    f = facts("mxfp6_e2m3")
    assert "zero bits" not in svg.picture(f)
    for usage in USAGES:
        f[usage]["element_bits"] = 8
    assert "zero bits" in svg.picture(f)


@pytest.mark.parametrize(
    ("used", "stored", "block", "parts"),
    [
        (300, 300, 128, [("block", 0, 128, 0), ("block", 128, 256, 1), ("block", 256, 300, 2)]),
        (1, 1, 1, [("block", 0, 1, 0)]),
        (
            *(300, 384, 16),
            [
                ("block", 0, 16, 0),
                ("block", 16, 32, 1),
                ("gap", 32, 288, 0),
                ("block", 288, 300, 18),
                ("padding", 300, 384, 0),
            ],
        ),
    ],
)
def test_of_many_blocks_the_first_two_and_the_last_are_shown(used, stored, block, parts):
    segments = svg.side(used, stored, block)
    assert [segment[:4] for segment in segments] == parts
    for one, following in itertools.pairwise(segments):
        assert one.length > 0
        assert one.at + one.length == following.at


def test_longer_blocks_are_not_drawn_shorter():
    lengths = [svg.side(n, n, n)[0].length for n in (1, 2, 4, 16, 32, 64, 128, 1024)]
    assert lengths == sorted(lengths)
