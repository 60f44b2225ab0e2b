"""The picture of a run: a bar a row, by matplotlib, which only this needs."""

from pathlib import Path

try:
    import matplotlib
    from matplotlib.figure import Figure
except ModuleNotFoundError as error:
    raise ValueError("--plot draws by matplotlib: pip install matplotlib") from error

_OWN, _OTHER = "#4477aa", "#bbbbbb"


def check(path: str) -> None:
    """ValueError unless the end of the name says which kind of picture it is to be."""
    kinds = Figure().canvas.get_supported_filetypes()
    if Path(path).suffix[1:] not in kinds:
        raise ValueError(f"--plot {path}: the name ends in .svg, .png or another of {[*kinds]}")


def write(rows: list[dict], path: str) -> None:
    """Milliseconds of a step, and its share of a copy's speed. narrowcast's bars are blue."""
    figure = Figure(figsize=(10, 0.6 + 0.25 * len(rows)), layout="constrained")
    axes = figure.subplots()
    labels = [f"{row['optimizer']}, {row['format']}, {row['state']}" for row in rows]
    colours = [_OWN if row["optimizer"].startswith("nc.") else _OTHER for row in rows]
    bars = axes.barh(labels, [row["ms"] for row in rows], color=colours)
    shares = ["" if row["of_copy"] is None else f", {row['of_copy']:.2f} of copy" for row in rows]
    texts = [f"{row['ms']:.3f}{share}" for row, share in zip(rows, shares, strict=True)]
    axes.bar_label(bars, texts, padding=4)
    axes.invert_yaxis()
    axes.margins(x=0.2)
    axes.set_title(f"ms a step, {rows[0]['parameters']:,} parameters, {rows[0]['device']}")
    with matplotlib.rc_context({"svg.fonttype": "none"}):  # letters, not their outlines
        figure.savefig(path)
