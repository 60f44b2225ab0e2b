"""What the benchmarks print: progress as it comes, a table at the end, JSON lines on request."""

import argparse
import json
import sys


def add_options(parser: argparse.ArgumentParser):
    parser.add_argument(
        "--json", metavar="FILE", help="also write a JSON line a row; - is the standard output"
    )


def progress(text: str):
    """To the standard error: the table may be kept by itself."""
    print(text, file=sys.stderr, flush=True)


def table(rows, columns) -> str:
    """Rows (dicts) as aligned text. `columns`: (key, heading, format); what is None is a dash."""
    cells = [[heading for _, heading, _ in columns]]
    cells += [[_cell(row.get(key), form) for key, _, form in columns] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    )


def _cell(value, form) -> str:
    return "-" if value is None else format(value, form)


def write_json(rows, path):
    """A line a row; path may be None (nothing), or "-"."""
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    if path == "-":
        sys.stdout.write(lines)
    elif path:
        with open(path, "w", encoding="utf-8") as file:
            file.write(lines)
