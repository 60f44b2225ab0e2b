"""Draws docs/overview.svg, the README's picture: bytes a parameter, bf16 beside two formats.

    python tools/draw_overview.py [FILE]

Every number follows from the table of all formats, generated/README.md, and from the widths of what
an optimizer holds. It needs no package, and draws the same file each time.
"""

import re
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
MASTER, MOMENTS, GRADIENT = 4.0, 8.0, 2.0  # fp32, two of fp32, bf16
COLORS = {"weight": "#d9822b", "master": "#4a6fa5", "moments": "#a9bcd6", "gradient": "#c9c9c9"}
MEANINGS = {
    "weight": "weight, as the format has it",
    "master": "fp32 master",
    "moments": "fp32 moments",
    "gradient": "bf16 gradient",
}
COLUMNS = {  # heading, what it counts, left edge, length of the longest bar
    "stored": ("stored", "divided by the ranks", 170, 150),
    "gathered": ("gathered", "forward + backward", 385, 110),
    "multiplied": ("multiplied", "what a product reads", 560, 80),
    "updated": ("updated", "read + written by a step", 715, 150),
}
TOP, ROW, BAR = 96, 74, 24


@dataclass(frozen=True)
class Kind:
    """One row of the picture, in bytes of a weight's element."""

    name: str
    what: str
    stored: float
    wire: float  # in one gather
    read: float  # by a product
    written: float  # by a step, of the weight
    passes: int  # of a step: a second one reads the master again
    notes: dict

    def bars(self) -> dict:
        """Of each column the pieces of its bar: (color, bytes)."""
        held = [("master", MASTER), ("moments", MOMENTS)]
        updated = [(what, 2 * size) for what, size in held]  # read and written
        again = ("master", MASTER * (self.passes - 1))
        return {
            "stored": [("weight", self.stored), *held, ("gradient", GRADIENT)],
            "gathered": [("weight", self.wire), ("weight", self.wire)],
            "multiplied": [("weight", self.read)],
            "updated": [("weight", self.written), *updated, again, ("gradient", GRADIENT)],
        }


def facts(name) -> tuple[float, float, int]:
    """Bytes an element as stored and on the wire, and the passes of a step."""
    lines = (ROOT / "generated" / "README.md").read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if "|" in line]
    head, row = rows[0], next(row for row in rows if re.match(rf"\[`{name}`\]", row[0]))
    fact = dict(zip(head, row, strict=True))
    assert fact["gather"] == "rowwise", f"{name} stores both usages, which is not drawn here"
    return float(fact["bits"]) / 8, float(fact["on the wire"]) / 8, int(fact["passes"])


def kinds() -> list[Kind]:
    rows = [
        Kind(
            *("bf16", "plain FSDP2", 2.0, 2.0, 2.0, 2.0, 1),
            {"gathered": "2.00 a pass", "multiplied": "bf16", "updated": "one pass"},
        )
    ]
    for name, read, multiplied in (
        ("fp8_block128", None, "e4m3, if scaled"),
        ("nvfp4", 2.0, "decoded to bf16"),
    ):
        stored, wire, passes = facts(name)
        many = "one pass" if passes == 1 else "two passes"
        notes = {
            "gathered": f"{wire:.2f} a pass",
            "multiplied": multiplied,
            "updated": f"{many}, both casts included",
        }
        # A step writes what the forward reads and what the backward reads.
        size = (stored, wire, read or stored, 2 * stored, passes)
        rows.append(Kind(name, "narrowcast", *size, notes))
    return rows


def text(x, y, words, size=13, color="#333", weight="normal"):
    style = f'font-size="{size}" fill="{color}" font-weight="{weight}"'
    return f'<text x="{x:g}" y="{y:g}" {style}>{words}</text>'


def bar(x, y, pieces, scale):
    """The bar, and where it ends."""
    drawn = []
    for what, size in pieces:
        width = size * scale
        box = f'x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR}"'
        drawn.append(f'<rect {box} fill="{COLORS[what]}" stroke="#fff"/>' if size else "")
        x += width
    return [piece for piece in drawn if piece], x


def draw() -> str:
    rows = kinds()
    height = TOP + ROW * len(rows) + 30
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 920 {height}" width="920" '
        f'height="{height}" font-family="Helvetica, Arial, sans-serif">',
        "<title>Bytes a parameter: bf16 under FSDP2 beside two formats of narrowcast</title>",
        f'<rect width="920" height="{height}" fill="#fff"/>',
        text(
            16,
            30,
            "Bytes a parameter under FSDP2, with AdamW over fp32 masters",
            16,
            "#111",
            "bold",
        ),
    ]
    for heading, what, x, _ in COLUMNS.values():
        drawn += [text(x, 62, heading, 14, "#111", "bold"), text(x, 79, what, 11, "#777")]
    longest = {
        column: max(sum(size for _, size in row.bars()[column]) for row in rows)
        for column in COLUMNS
    }
    for i, row in enumerate(rows):
        y = TOP + i * ROW
        drawn += [
            text(16, y + 16, row.name, 15, "#111", "bold"),
            text(16, y + 33, row.what, 11, "#777"),
        ]
        for column, (_, _, x, length) in COLUMNS.items():
            pieces = row.bars()[column]
            boxes, end = bar(x, y, pieces, length / longest[column])
            total = sum(size for _, size in pieces)
            drawn += boxes
            drawn.append(text(end + 5, y + 17, f"{total:.2f}", 13, "#111", "bold"))
            if note := row.notes.get(column):
                drawn.append(text(x, y + BAR + 14, note, 11, "#777"))
    x, y = 170, height - 16
    for what, meaning in MEANINGS.items():
        drawn.append(f'<rect x="{x}" y="{y - 10}" width="12" height="12" fill="{COLORS[what]}"/>')
        drawn.append(text(x + 18, y, meaning, 12))
        x += 38 + 6.4 * len(meaning)
    return "\n".join([*drawn, "</svg>"]) + "\n"


if __name__ == "__main__":
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "overview.svg"
    path.write_text(draw(), encoding="utf-8")
