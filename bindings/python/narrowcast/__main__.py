"""The command `narrowcast`: shows the loaded formats, builds others, and measures them."""

import argparse
import os
import sys
from pathlib import Path

import torch

import narrowcast
from narrowcast import benchmark
from narrowcast._C import PluginError
from narrowcast.command import build, reports


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line. Returns the exit status: 0, or 1 after an error."""
    options = vars(_parser().parse_args(arguments))
    run = options.pop("run")
    try:
        status = 0 if run(**options) in (None, True) else 1
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # `narrowcast list | head`: nothing is left to flush at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ValueError, OSError, PluginError, build.BuildError) as error:
        print(f"narrowcast: {error}", file=sys.stderr)
    return 1


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
        one.add_argument("--shape", **shape, help="of a weight (default: 4096x4096)")
    check = command("check", build.check, "read specs and print every error")
    make = command(
        *("build", build.build, "build plugins of your own formats and optimizer rules"),
        description="Generates and compiles a plugin for each spec, and tests its golden bytes. "
        "With --rule, compiles an optimizer's rule for plain parameters and for each format that "
        "is named. NARROWCAST_PLUGINS=DIR, or narrowcast.load_plugin(DIR) in Python, makes the "
        "formats and rules available.",
    )
    check.add_argument("specs", nargs="+", metavar="SPEC", help="<format>.toml")
    names = "<format>.toml; with --rule also the name of a format that comes with narrowcast"
    make.add_argument("specs", nargs="*", metavar="SPEC", help=names)
    _add_build_options(make)
    bench = command(
        *("bench", benchmark.run, "time optimizers on this machine, with its formats"),
        description="Steps of narrowcast's optimizers with every rule, state and format, beside "
        "torch's and, where they are installed, the AdamW in eight bits of torchao, bitsandbytes "
        "and FlashOptim and dion's Muon. All take turns in one run.",
    )
    _add_bench_options(bench)
    return parser


def _add_build_options(parser: argparse.ArgumentParser) -> None:
    folder = {"required": True, "type": Path, "metavar": "DIR"}
    parser.add_argument("-o", "--output", **folder, help="folder of the plugins; made if absent")
    rule = {"action": "append", "default": [], "type": Path, "metavar": "HEADER"}
    header = "<rule>.hpp of an optimizer of your own (docs/writing-an-optimizer.md); several: again"
    parser.add_argument("--rule", **rule, dest="rules", help=header)
    gpu = {"choices": ("auto", "on", "off"), "default": "auto"}
    parser.add_argument("--gpu", **gpu, help="GPU kernels; auto (default): if nvcc exists")
    quick = "compile for one instruction set of the CPU, which is quicker"
    parser.add_argument("--baseline", action="store_true", help=quick)
    untested = "do not run the golden tests of the formats"
    parser.add_argument("--no-test", action="store_true", help=untested)


def _add_bench_options(parser: argparse.ArgumentParser) -> None:
    names = {"type": lambda text: text.split(","), "metavar": "NAME,..."}
    parser.add_argument("--formats", **names, help="of weights (default: all)")
    parser.add_argument("--rules", **names, help="adamw, lion, sgd, muon (default: all)")
    states = "of moments: float32, bfloat16, state formats (default: all that a rule takes)"
    parser.add_argument("--states", **names, help=states)
    count = "parameters of each (default: 218, fewer where the GPU lacks room; on the CPU 1)"
    parser.add_argument("--millions", type=float, help=count)
    rounds = "in each of which all step in turn (default: 20; on the CPU 5)"
    parser.add_argument("--rounds", type=int, help=rounds)
    device = {"choices": ("cpu", "cuda"), "help": "default: cuda where there is one"}
    parser.add_argument("--device", **device)
    lines = "also write a line of JSON a row; -: to the standard output"
    parser.add_argument("--json", metavar="FILE", help=lines)
    parser.add_argument("--plot", metavar="FILE", help="also draw the times, by matplotlib")


def _shape(text: str) -> tuple[int, int]:
    rows, _, columns = text.lower().partition("x")
    if not (rows.isdecimal() and columns.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not ROWSxCOLUMNS, such as 300x520")
    return int(rows), int(columns)


if __name__ == "__main__":
    sys.exit(main())
