"""The options of learning.py, and what they are where none is given."""

import argparse
import os

import torch

import modes
import processes
import report

MODES = "bf16,scaled:fp8_e4m3,scaled:fp8_block128,scaled:mxfp8_e4m3,scaled:nvfp4"
TIMED_MODES = "bf16+t,scaled:fp8_e4m3+s"  # on several ranks gradients travel narrow, too
# For --steps on a GPU, --minutes on a GPU, and either on a CPU.
SIZES = {
    "layers": (10, 16, 2),
    "width": (1024, 2048, 128),
    "seq": (1024, 1024, 64),
    "batch": (8, 64, 8),  # timed: large, to keep GPUs busy
}
COUNTS = {"steps": (2000, 20), "every": (100, 5)}  # on a GPU, on a CPU


def options(description: str = __doc__) -> argparse.Namespace:
    parser = report.parser(description)
    add = parser.add_argument
    add("--modes", help=f"default: {MODES}; with --minutes {TIMED_MODES}, and +r on several ranks")
    small = "; fewer on the CPU"
    timed = "; with --minutes {}" + small
    add("--steps", type=int, help="default: 2000" + small)
    add("--minutes", type=float, help="that each mode trains, in place of --steps")
    add("--layers", type=int, help="default: 10" + timed.format(16))
    add("--width", type=int, help="default: 1024, 126M parameters" + timed.format("2048, 806M"))
    add("--seq", type=int, help="bytes in a window; default: 1024" + small)
    add("--batch", type=int, help="windows a step, among all ranks; default: 8" + timed.format(64))
    add("--lr", type=float, default=6e-4, help="the highest learning rate; default: 6e-4")
    add("--beta2", type=float, default=0.95, help="AdamW's; default: 0.95")
    add("--seed", type=int, default=0, help="of the first weights and of the windows' order")
    add("--every", type=int, help="steps between evaluations; default: 100" + small)
    add("--held-out", type=int, default=16, help="batches of held-out windows; default: 16")
    text = "library (Python's own), machine (and its packages' sources), or a file or folder"
    add("--text", help=text + "; default: library; with --minutes machine")
    compiled = "each block; default: all is eager; with --minutes compiled"
    add("--compile", action=argparse.BooleanOptionalAction, help=compiled)
    form = "of gradients in modes with +r; default: %(default)s"
    add("--gradient-format", default="mxfp8_e4m3", metavar="FORMAT", help=form)
    add("--gradient-rounding", default="nearest", choices=["nearest", "stochastic"], help="of them")
    processes.add_device_option(parser)
    add("--ranks", type=int, help="default: 1; with --minutes one a GPU")
    report.add_options(parser)
    args = parser.parse_args()
    is_spread = args.minutes is not None and args.device == "cuda"
    args.ranks = args.ranks or (torch.cuda.device_count() if is_spread else 1)
    args.world = int(os.environ.get("WORLD_SIZE", args.ranks))
    args.sharded = args.minutes is not None or args.world > 1
    try:
        _complete(args)
        args.modes = _modes(args)
    except ValueError as error:
        parser.error(str(error))
    return args


def _complete(args):
    """Adds what was not given."""
    is_timed, on_gpu = args.minutes is not None, args.device == "cuda"
    if is_timed and (args.steps or args.every):
        raise ValueError("--minutes stands in place of --steps and --every")
    default = {name: sizes[is_timed if on_gpu else 2] for name, sizes in SIZES.items()}
    if not is_timed:
        default |= {name: counts[not on_gpu] for name, counts in COUNTS.items()}
    for name, value in default.items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    for name in (*default, "lr", *["minutes"] * is_timed):
        if getattr(args, name) <= 0:
            raise ValueError(f"--{name} is more than 0")
    if args.compile is None:
        args.compile = is_timed
    args.text = args.text or ("machine" if is_timed else "library")
    args.heads = max(1, args.width // 128)
    if args.batch % args.world:
        raise ValueError(f"--batch {args.batch} is not a multiple of {args.world} ranks")


def _modes(args) -> list[modes.Mode]:
    """In a timed run those that are named, the first of which others are compared with."""
    if args.minutes is None:
        chosen = modes.selection(args.modes or MODES, None)
    else:
        named = args.modes or TIMED_MODES + modes.NARROW * (args.world > 1)
        chosen = [modes.parse(text.strip()) for text in named.split(",")]
    for mode in reversed(chosen):  # a baseline that was not asked for comes first
        if mode.gradients and args.world == 1:
            raise ValueError(f"{mode}: one rank sends no gradients; see --ranks")
        if mode.optimizer == modes.TORCH and not args.sharded:
            raise ValueError(
                f"{mode}: torch's AdamW updates float32 parameters, which FSDP2 gathers in "
                "bfloat16: on several ranks, or with --minutes"
            )
        if mode.eager or mode.weights == modes.TORCHAO:
            raise ValueError(
                f"{mode}: a mode is bf16, nc:FORMAT or scaled:FORMAT here, with +v, +h, +s, +m or "
                "+t, and not eager, see --compile"
            )
    return chosen
