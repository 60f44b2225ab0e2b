"""What a format's page and picture say, read back for the tests."""

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from pathlib import Path

import reference

ROOT = Path(__file__).parents[3]
GENERATED = ROOT / "generated"
SHAPE = 300, 520  # of the matrix that pages show
NAMES = sorted(path.stem for path in (ROOT / "spec").glob("*.toml"))
FORMATS = {name: reference.load_format(ROOT / "spec" / f"{name}.toml") for name in NAMES}
USAGES = ("rowwise", "columnwise")
SVG = "{http://www.w3.org/2000/svg}"


def tables(path):
    """The rows of all tables of a page, as lists of cells, heads and rules left out."""
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = []
    for above, line in zip(["", *lines], lines, strict=False):
        is_rule = set(line) <= set("|-") and line.startswith("|")
        if is_rule:
            rows.pop()
        elif line.startswith("|"):
            rows.append([cell.strip() for cell in line.strip("|").split("|")])
        assert not is_rule or above.startswith("|"), f"{path}: a rule without a head"
    return rows


def facts(name):
    """The two-column table of a page."""
    rows = tables(GENERATED / name / "page.md")
    return {row[0]: row[1] for row in rows if len(row) == 2}


@dataclass
class Cell:
    """A box of a picture and the texts in it."""

    style: str
    x: int
    y: int
    width: int
    height: int
    title: str | None
    texts: list = field(default_factory=list)

    def holds(self, x, y):
        return self.x <= x <= self.x + self.width and self.y <= y <= self.y + self.height

    def overlaps(self, other):
        across = self.x < other.x + other.width and other.x < self.x + self.width
        return across and self.y < other.y + other.height and other.y < self.y + self.height


def picture(name):
    """The picture's root, and for each usage its cells."""
    root = ElementTree.parse(GENERATED / name / "layout.svg").getroot()
    return root, {title: _cells(group) for title, group in _groups(root)}


def ticks(root, usage, frame):
    """The numbers beside a frame, along its top and down its side."""
    group = dict(_groups(root))[usage]
    texts = [
        (t.get("class"), int(t.get("x")), int(t.get("y")), t.text) for t in group.iter(f"{SVG}text")
    ]
    across = [
        int(text)
        for style, x, y, text in texts
        if style == "middle tick" and frame.y - 10 < y < frame.y and frame.holds(x, frame.y)
    ]
    down = [
        int(text)
        for style, x, y, text in texts
        if style == "end tick" and frame.x - 10 < x < frame.x and frame.holds(frame.x, y - 4)
    ]
    return across, down


def _groups(root):
    return [(group.find(f"{SVG}title").text, group) for group in root.iter(f"{SVG}g")]


def _cells(group):
    cells = [_cell(rect) for rect in group.iter(f"{SVG}rect")]
    for text in group.iter(f"{SVG}text"):
        if "middle" not in text.get("class", ""):
            continue
        x, y = int(text.get("x")), int(text.get("y")) - 4
        for cell in cells:
            if cell.style != "frame" and cell.holds(x, y):
                cell.texts.append(text.text)
    return cells


def _cell(rect):
    title = rect.find(f"{SVG}title")
    places = (int(rect.get(side)) for side in ("x", "y", "width", "height"))
    return Cell(rect.get("class"), *places, None if title is None else title.text)


def numbers(text):
    return tuple(int(digits) for digits in re.findall(r"\d+", text))
