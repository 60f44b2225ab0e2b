"""What the benchmarks print: progress as it comes, a table at the end, JSON lines on request."""

import argparse
import contextlib
import json
import re
import shlex
import sys
from pathlib import Path


def parser(text: str) -> argparse.ArgumentParser:
    """One whose help begins with a program's own docstring."""
    form = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(description=text, formatter_class=form)


def add_options(parser: argparse.ArgumentParser):
    parser.add_argument(
        "--json", metavar="FILE", help="also write a JSON line a row; - is the standard output"
    )


def progress(text: str):
    """To the standard error: the table may be kept by itself."""
    print(text, file=sys.stderr, flush=True)


def table(rows, columns) -> str:
    """Rows (dicts) as aligned text. `columns`: (key, heading, format); what is None is a dash."""
    cells = _cells(rows, columns)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    )


def markdown(rows, columns) -> str:
    """The same as a table of Markdown."""
    head, *body = _cells(rows, columns)
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, rule, *body))


def _cells(rows, columns) -> list[list[str]]:
    """Lines of cells, the headings first."""
    cells = [[heading for _, heading, _ in columns]]
    return cells + [[_cell(row.get(key), form) for key, _, form in columns] for row in rows]


def _cell(value, form) -> str:
    return "-" if value is None else format(value, form)


@contextlib.contextmanager
def json_lines(path):
    """Gives a function that writes a row, as a line and at once. path may be None (nothing), or
    "-"."""
    with contextlib.ExitStack() as stack:
        file = sys.stdout if path == "-" else None
        if path and file is None:
            file = stack.enter_context(open(path, "w", encoding="utf-8"))

        def write(row):
            if file:
                file.write(json.dumps(row) + "\n")
                file.flush()

        yield write


def write_json(rows, path):
    """A line a row; path as for json_lines."""
    with json_lines(path) as write:
        for row in rows:
            write(row)


def read_json(path: Path) -> list[dict]:
    """The rows that write_json() has written."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def command() -> str:
    """The command line of this program, from the repository's root. Of files and folders elsewhere
    it has the names alone.
    """
    program = Path(sys.argv[0]).resolve().relative_to(Path(__file__).parents[2])
    arguments = [re.sub(r"(^|=)/(?:.*/)?", r"\1", argument) for argument in sys.argv[1:]]
    return shlex.join(["python", str(program), *arguments])
