"""What the benchmarks print, beside what those of the package do: options, and pages."""

import argparse
import json
import re
import shlex
import sys
from pathlib import Path

from narrowcast.benchmark.report import cells, json_lines, progress, table, write_json

__all__ = ["json_lines", "progress", "table", "write_json"]


def parser(text: str) -> argparse.ArgumentParser:
    """One whose help begins with a program's own docstring."""
    form = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(description=text, formatter_class=form)


def add_options(parser: argparse.ArgumentParser):
    parser.add_argument(
        "--json", metavar="FILE", help="also write a JSON line a row; - is the standard output"
    )


def markdown(rows, columns) -> str:
    """The same as a table of Markdown."""
    head, *body = cells(rows, columns)
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, rule, *body))


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
