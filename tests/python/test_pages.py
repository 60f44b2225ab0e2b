"""The generated pages tell the truth: numbers against numpy, pictures against the layouts."""

import math

import numpy as np
import pytest
import torch

import narrowcast as nc
import pages
import reference
from narrowcast import _C
from reference.layout import cdiv, pack, scale_shape

NAMES = sorted(path.stem for path in (pages.ROOT / "spec").glob("*.toml"))
FORMATS = {name: reference.load_format(pages.ROOT / "spec" / f"{name}.toml") for name in NAMES}
USAGES = ("rowwise", "columnwise")
SIDE = 256


def scrambled(x):
    x = np.asarray(x, np.uint32)
    x = (x ^ x >> np.uint32(16)) * np.uint32(0x7FEB352D)
    x = (x ^ x >> np.uint32(15)) * np.uint32(0x846CA68B)
    return x ^ x >> np.uint32(16)


@pytest.fixture(scope="module")
def sample():
    """The pages' matrix, made here with numpy's logarithm."""
    pairs = np.arange(SIDE * SIDE)
    words = scrambled(np.stack([2 * pairs + 1, 2 * pairs + 2], axis=1))
    uv = (words.astype(np.float64) + 0.5) / 2.0**31 - 1
    s = (uv**2).sum(axis=1)
    kept = uv[s < 1] * np.sqrt(-2 * np.log(s[s < 1]) / s[s < 1])[:, None]
    return kept.reshape(-1)[: SIDE * SIDE].astype(np.float32).reshape(SIDE, SIDE)


def test_the_sample_is_normal(sample):
    ordered = np.sort(sample.reshape(-1).astype(np.float64))
    expected = np.array([0.5 * math.erfc(-x / math.sqrt(2)) for x in ordered])
    seen = (np.arange(ordered.size) + 0.5) / ordered.size
    assert np.abs(seen - expected).max() < 1.63 / math.sqrt(ordered.size)  # Kolmogorov, 1 %


@pytest.mark.parametrize("name", NAMES)
def test_errors_are_those_of_the_reference(name, sample):
    fmt, facts = FORMATS[name], pages.facts(name)
    quantized = reference.quantize(sample, fmt)
    x = sample.astype(np.float64)
    for usage in USAGES:
        error = reference.dequantize(quantized, fmt, sample.shape, usage).astype(np.float64) - x
        relative = math.sqrt((error**2).sum() / (x**2).sum())
        expected = f"{100 * relative:.2f} %, {-20 * math.log10(relative):.1f} dB"
        assert facts[f"relative error on Gaussian data, {usage}"] == expected


@pytest.mark.parametrize("name", NAMES)
def test_facts_are_those_of_the_plugin(name):
    f, facts = nc.format(name), pages.facts(name)
    assert float(facts["bits an element, one usage as stored"]) == pytest.approx(
        f.bits_per_element, rel=1e-5
    )
    assert float(facts["bits an element on the wire"]) == pytest.approx(
        f.wire_bits_per_element, rel=1e-5
    )
    assert int(facts["row step"]) == f.row_step
    assert facts["gather"] == f.gather


def gathered(f, both):
    """The usages and the payload's bytes of each pass (forward, backward), on one rank."""
    bytes = _C.Bytes.allocate(f, *pages.SHAPE, USAGES, torch.device("cpu"))
    gather = _C.WeightGather(bytes, *pages.SHAPE[:1], pages.SHAPE[0], 1, both)
    gather.use_outbox(torch.empty(gather.outbox_bytes, dtype=torch.uint8), 0)
    arena = torch.empty(gather.arena_bytes, dtype=torch.uint8)
    gather.settle(gather.payloads(False), arena)
    answers = []
    for backward in (False, True):
        usages = gather.whole(backward).usages
        size = sum(payload.numel() for payload in gather.payloads(backward))
        answers.append((usages[0] if len(usages) == 1 else "both", size))
    return answers


@pytest.mark.parametrize("name", NAMES)
def test_phases_are_those_of_the_gathers(name):
    f = nc.format(name)
    rows = [row for row in pages.tables(pages.GENERATED / name / "page.md") if len(row) == 4]
    phases = {row[0].split(" ")[0]: (row[1], int(row[3])) for row in rows if "`" not in row[0][:1]}
    by_pass, both = (gathered(f, both) for both in (False, True))
    for backward, phase in ((False, "forward"), (True, "backward")):
        said, size = phases[phase]
        assert (said.split(";")[0], size) == by_pass[backward]
    for phase in ("a", "kept"):
        said, size = phases[phase]
        usages, expected = both[True]
        assert said.startswith(usages)
        assert size == expected


# ---- pictures ----


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


# ---- the index ----


def test_the_index_compares_all_formats():
    rows = {row[0]: row[1:] for row in pages.tables(pages.GENERATED / "README.md")}
    assert list(rows) == [f"[`{name}`]({name}/page.md)" for name in NAMES]
    for name, row in zip(NAMES, rows.values(), strict=True):
        facts, fmt = pages.facts(name), FORMATS[name]
        _, _, blocks_, bits, wire, gather, row_step, passes, error, decibels = row
        assert row[0] == fmt.element.name
        assert row[1] == facts["scale"]
        assert blocks_.split(" and ")[0] == facts["rowwise block"]
        assert blocks_.split(" and ")[-1] == facts["columnwise block"]
        assert bits == facts["bits an element, one usage as stored"]
        assert wire == facts["bits an element on the wire"]
        assert gather == facts["gather"]
        assert row_step == facts["row step"]
        assert passes == facts["passes of an optimizer step"]
        assert f"{error}, {decibels}" == facts["relative error on Gaussian data, rowwise"]


def test_pages_show_their_pictures():
    for name in NAMES:
        folder = pages.GENERATED / name
        assert "](layout.svg)" in (folder / "page.md").read_text(encoding="utf-8")
        assert (folder / "layout.svg").is_file()
