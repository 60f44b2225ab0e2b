"""What benchmarks print: progress as it comes, a table at the end, JSON lines on request."""

import contextlib
import json
import sys
import time

_SECONDS = 5  # between two lines of progress


def progress(text: str) -> None:
    """To the standard error: the table may be kept by itself."""
    print(text, file=sys.stderr, flush=True)


class Progress:
    """Tells how far something long has come, every few seconds."""

    def __init__(self):
        self.last = time.monotonic()

    def tell(self, text: str) -> None:
        if time.monotonic() - self.last >= _SECONDS:
            progress(text)
            self.last = time.monotonic()


def table(rows, columns) -> str:
    """Rows (dicts) as aligned text. `columns`: (key, heading, format); None is a dash."""
    lines = cells(rows, columns)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def cells(rows, columns) -> list[list[str]]:
    """Lines of cells, the headings first."""
    headings = [heading for _, heading, _ in columns]
    return [headings, *([_cell(row.get(key), form) for key, _, form in columns] for row in rows)]


def _cell(value, form) -> str:
    return "-" if value is None else format(value, form)


@contextlib.contextmanager
def json_lines(path):
    """Gives a function that writes a row, as a line and at once. path may be None (nothing), or
    "-" (the standard output).
    """
    with contextlib.ExitStack() as stack:
        file = sys.stdout if path == "-" else None
        if path and file is None:
            file = stack.enter_context(open(path, "w", encoding="utf-8"))

        def write(row):
            if file:
                file.write(json.dumps(row) + "\n")
                file.flush()

        yield write


def write_json(rows, path) -> None:
    """A line a row; path as for json_lines."""
    with json_lines(path) as write:
        for row in rows:
            write(row)
