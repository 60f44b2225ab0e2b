"""The command `narrowcast`: the formats that there are, and how to make others."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from narrowcast.command import build, reports
from narrowcast.errors import PluginError


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line. Returns the exit status: 0, or 1 after an error."""
    options = _parser().parse_args(arguments)
    try:
        return 0 if options.run(options) in (None, True) else 1
    except (ValueError, PluginError, build.BuildError) as error:
        print(f"narrowcast: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="narrowcast", description="Narrow number formats for model weights."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    listing = commands.add_parser("list", help="the loaded formats")
    listing.set_defaults(run=lambda options: reports.print_list())

    showing = commands.add_parser("show", help="one format: its facts and its bytes")
    showing.add_argument("format", metavar="FORMAT")
    _add_shape(showing)
    showing.set_defaults(run=lambda options: reports.print_format(options.format, *options.shape))

    comparing = commands.add_parser("diff", help="two formats side by side")
    comparing.add_argument("formats", nargs=2, metavar="FORMAT")
    _add_shape(comparing)
    comparing.set_defaults(
        run=lambda options: reports.print_difference(*options.formats, *options.shape)
    )

    table = commands.add_parser("operators", help="what each operation does with a weight")
    table.set_defaults(run=lambda options: reports.print_operators())

    checking = commands.add_parser("check", help="read specs, and print every error")
    checking.add_argument("specs", nargs="+", metavar="SPEC", help="<format>.toml")
    checking.set_defaults(run=lambda options: build.check(options.specs))
    _add_build(commands.add_parser("build", help="make plugins of formats of your own"))
    return parser


def _add_shape(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        *("--shape",), type=_shape, default=(4096, 4096), metavar="ROWSxCOLUMNS", help="a weight's"
    )


def _add_build(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Generates and compiles a plugin for each spec, and tests its golden bytes. "
        "NARROWCAST_PLUGINS=DIR, or narrowcast.load(DIR) in Python, makes the formats available."
    )
    parser.add_argument("specs", nargs="+", metavar="SPEC", help="<format>.toml")
    parser.add_argument(
        *("-o", "--output"), required=True, type=Path, metavar="DIR", help="made if it is not there"
    )
    parser.add_argument(
        *("--gpu",),
        choices=("auto", "on", "off"),
        default="auto",
        help="GPU kernels: auto (the default) where nvcc is",
    )
    parser.add_argument(
        *("--baseline",),
        action="store_true",
        help="one instruction set of the CPU, not all: for a quick try",
    )
    parser.add_argument(
        *("--no-test",), action="store_true", help="do not run the golden tests of the formats"
    )
    parser.set_defaults(run=_build)


def _build(options: argparse.Namespace) -> bool:
    gpu = {"auto": None, "on": True, "off": False}[options.gpu]
    how = build.Options(gpu=gpu, baseline=options.baseline, test=not options.no_test)
    return build.build(options.specs, options.output, how)


def _shape(text: str) -> tuple[int, int]:
    rows, _, columns = text.lower().partition("x")
    if not (rows.isdecimal() and columns.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not ROWSxCOLUMNS, such as 300x520")
    return int(rows), int(columns)
