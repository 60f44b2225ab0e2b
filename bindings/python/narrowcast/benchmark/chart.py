"""The picture of a run, an SVG: a bar a row."""

from xml.sax.saxutils import escape

_LINE, _LABELS, _BARS, _FIGURES = 18, 360, 420, 170  # pixels: a row's height, and the three columns
_STYLE = (
    'text { font: 12px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328; } '
    ".end { text-anchor: end; } .page { fill: #ffffff; } .own { fill: #4477aa; } "
    ".other { fill: #bbbbbb; }"
)


def write(rows: list[dict], path: str) -> None:
    """Milliseconds of a step, and its share of a copy's speed. narrowcast's bars are blue."""
    longest = max(row["ms"] for row in rows)
    width, height = _LABELS + _BARS + _FIGURES, _LINE * (len(rows) + 3)
    title = f"ms a step, {rows[0]['parameters']:,} parameters, {rows[0]['device']}"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" role="img">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style>",
        f'<rect class="page" width="{width}" height="{height}"/>',
        f'<text x="{_LABELS}" y="{_LINE}">{escape(title)}</text>',
    ]
    for number, row in enumerate(rows):
        y = _LINE * (number + 2)
        label = escape(f"{row['optimizer']}, {row['format']}, {row['state']}")
        length = _BARS * row["ms"] / longest
        kind = "own" if row["optimizer"].startswith("nc.") else "other"
        share = "" if row["of_copy"] is None else f", {row['of_copy']:.2f} of copy"
        lines += [
            f'<text class="end" x="{_LABELS - 6}" y="{y}">{label}</text>',
            f'<rect class="{kind}" x="{_LABELS}" y="{y - 11}" width="{length:.1f}" height="14"/>',
            f'<text x="{_LABELS + length + 5:.1f}" y="{y}">{row["ms"]:.3f}{share}</text>',
        ]
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join([*lines, "</svg>", ""]))
