"""The command `narrowcast`: the formats that there are, and how to make others."""

import argparse
import contextlib
import io
import os
import sys
from pathlib import Path

import torch

import narrowcast
from narrowcast._C import PluginError
from narrowcast.command import build, reports

_INTERRUPTED = 130  # the exit status that shells give to a program that Ctrl-C has ended
_MOST_DIGITS, _MOST_ELEMENTS = 17, 2**56  # of a shape


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line. Returns the exit status: 0, or 1 after an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names of files may hold any bytes
            stream.reconfigure(errors="backslashreplace")
    options = vars(_parser().parse_args(arguments))
    done = _run(options.pop("run"), options)
    return 0 if _is_printed() and done else 1


def _run(command, options: dict) -> bool:
    try:
        return command(**options) in (None, True)
    except (ValueError, PluginError, build.BuildError) as error:
        print(f"narrowcast: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("narrowcast: interrupted", file=sys.stderr)
        raise SystemExit(_INTERRUPTED) from None
    except BrokenPipeError:  # the reader has read enough
        pass
    except OSError as error:  # it names a file that cannot be opened, and none that is full
        files = f" or a file in {options['output']}" if "output" in options else ""
        where = error.filename or f"standard output{files}"
        print(f"narrowcast: {where}: {error.strerror}", file=sys.stderr)
    return False


def _is_printed() -> bool:
    """Whether standard output took all that was printed. If not, says why."""
    try:
        sys.stdout.flush()
        return True
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            print(f"narrowcast: standard output: {error.strerror}", file=sys.stderr)
        # Python tries once more when it ends, and shall not fail.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False


def _parser() -> argparse.ArgumentParser:
    """Each command's arguments are those of the function that runs it."""
    parser = argparse.ArgumentParser(
        prog="narrowcast", description="Narrow number formats for model weights."
    )
    versions = f"narrowcast {narrowcast.__version__}, torch {torch.__version__}"
    parser.add_argument("--version", action="version", version=versions, help="print it, and exit")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run, help: str, **more) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=help, **more)
        added.set_defaults(run=run)
        return added

    command("list", reports.print_list, "the loaded formats")
    show = command("show", reports.print_format, "one format: its facts and its bytes")
    show.add_argument("format", metavar="FORMAT")
    diff = command("diff", reports.print_difference, "two formats side by side")
    diff.add_argument("formats", nargs=2, metavar="FORMAT")
    shape = {"type": _shape, "default": (4096, 4096), "metavar": "ROWSxCOLUMNS"}
    for one in (show, diff):
        one.add_argument("--shape", **shape, help="a weight's; default: 4096x4096")
    check = command("check", build.check, "read specs, and print every error")
    make = command(
        *("build", build.build, "make plugins of formats of your own"),
        description="Generates and compiles a plugin for each spec, and tests its golden bytes. "
        "NARROWCAST_PLUGINS=DIR, or narrowcast.load(DIR) in Python, makes the formats available.",
    )
    for one in (check, make):
        one.add_argument("specs", nargs="+", metavar="SPEC", help="<format>.toml")
    _add_build_options(make)
    return parser


def _add_build_options(parser: argparse.ArgumentParser) -> None:
    folder = {"required": True, "type": _folder, "metavar": "DIR"}
    parser.add_argument("-o", "--output", **folder, help="made if it is not there")
    gpu = {"choices": ("auto", "on", "off"), "default": "auto"}
    parser.add_argument("--gpu", **gpu, help="GPU kernels: auto (the default) where nvcc is")
    quick = "one instruction set of the CPU, not all: for a quick try"
    parser.add_argument("--baseline", action="store_true", help=quick)
    untested = "do not run the golden tests of the formats"
    parser.add_argument("--no-test", action="store_true", help=untested)


def _folder(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("it is empty: name a folder, or . for this one")
    return Path(text)


def _shape(text: str) -> tuple[int, int]:
    rows, _, columns = text.lower().partition("x")
    if not (rows.isdecimal() and columns.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not ROWSxCOLUMNS, such as 300x520")
    if max(len(rows), len(columns)) > _MOST_DIGITS or int(rows) * int(columns) > _MOST_ELEMENTS:
        raise argparse.ArgumentTypeError(f"{text!r} has more elements than any memory (2^56)")
    return int(rows), int(columns)
