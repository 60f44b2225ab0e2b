"""nc.export of a large model on one device, beside the copy of its bytes to the host.

    python tests/bench/bench_export.py [--formats mxfp8_e4m3,nvfp4] [--billions 2]

The copy is that of the same tensors to the host, one after another, into memory that is there:
pinned where there is a GPU, so that the host queues the copies and waits for the last one. What
nc.export_tensors yields is copied there likewise. nc.export writes files, in a folder in memory, so
that no disk sets the pace. Peak memory is what either adds to the model's own.
"""

import shutil
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

import narrowcast as nc
import report

COLUMNS = [
    ("format", "nc.export", "s"),
    ("layout", "layout", "s"),
    ("gb", "GB", ".2f"),
    ("copy_s", "copy s", ".3f"),
    ("tensors_s", "export_tensors s", ".3f"),
    ("of_copy", "of the copy's speed", ".2f"),
    ("export_s", "export s", ".3f"),
    ("load_s", "load s", ".3f"),
    ("peak_mb", "peak MB above", ".1f"),
    ("largest_mb", "largest weight MB", ".1f"),
]


def options():
    parser = report.parser(__doc__)
    add = parser.add_argument
    add("--formats", default="mxfp8_e4m3,fp8_block128,nvfp4", help="default: %(default)s")
    add("--billions", type=float, default=2.0, help="of parameters; default: %(default)s")
    add("--width", type=int, default=4096, help="default: %(default)s, Llama-3-8B's")
    add("--folder", default="/dev/shm", help="default: %(default)s")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--rounds", type=int, default=3)
    report.add_options(parser)
    return parser.parse_args()


def build(args, format):
    hidden = args.width * 7 // 2
    count = max(1, round(args.billions * 1e9 / (2 * args.width * hidden)))
    with torch.device(args.device):
        sizes = [(args.width, hidden), (hidden, args.width)] * count
        model = nn.Sequential(*(nn.Linear(*size, bias=False) for size in sizes))
    return nc.convert(model, format)


def timed(args, function) -> float:
    """The least of some rounds, in seconds."""
    best = float("inf")
    for _ in range(args.rounds):
        synchronize(args)
        begin = time.perf_counter()
        function()
        synchronize(args)
        best = min(best, time.perf_counter() - begin)
    return best


def synchronize(args):
    if args.device == "cuda":
        torch.cuda.synchronize()


def measure(args, format) -> dict:
    layout = nc.format(format).layouts[0]
    torch.manual_seed(0)
    model = build(args, format)
    tensors = dict(nc.export_tensors(model, layout))
    size = sum(one.nbytes for one in tensors.values())
    folder = Path(tempfile.mkdtemp(dir=args.folder)) / "out"
    room = torch.empty(
        max(one.nbytes for one in tensors.values()),
        dtype=torch.uint8,
        pin_memory=args.device == "cuda",
    )

    def copy(named):
        for _, one in named:
            room[: one.nbytes].copy_(one.reshape(-1).view(torch.uint8), non_blocking=True)

    try:
        copy_s = timed(args, lambda: copy(tensors.items()))
        tensors.clear()
        before = memory(args)
        tensors_s = timed(args, lambda: copy(nc.export_tensors(model, layout, copy=False)))
        export_s = timed(args, lambda: nc.export(model, folder, layout, overwrite=True))
        peak = peak_of(args) - before
        load_s = timed(args, lambda: nc.load_published(model, folder))
    finally:
        shutil.rmtree(folder.parent)
    return {
        "format": format,
        "layout": layout,
        "gb": size / 1e9,
        "copy_s": copy_s,
        "tensors_s": tensors_s,
        "of_copy": copy_s / tensors_s,
        "export_s": export_s,
        "load_s": load_s,
        "peak_mb": peak / 1e6,
        "largest_mb": max(p.numel() for p in model.parameters()) / 1e6,
    }


def memory(args) -> int:
    if args.device != "cuda":
        return 0
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def peak_of(args) -> int:
    return torch.cuda.max_memory_allocated() if args.device == "cuda" else 0


def main():
    args = options()
    rows = []
    with report.json_lines(args.json) as write:
        for format in args.formats.split(","):
            report.progress(f"{format}: {args.billions:g} billion parameters on {args.device}")
            rows.append(measure(args, format))
            write(rows[-1])
    print(report.table(rows, COLUMNS))


if __name__ == "__main__":
    main()
