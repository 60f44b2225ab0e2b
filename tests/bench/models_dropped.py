"""Models made, sharded, trained for two steps and dropped, one after another in one process: does
the memory come back?

    python tests/bench/models_dropped.py                                   # one rank
    torchrun --nproc-per-node 2 tests/bench/models_dropped.py --formats mxfp8_e4m3,nvfp4

Each line has the bytes that tensors hold after a model is gone, and how many objects and how much
memory the process has. The first models fill caches; what the others leave behind is a leak, and
the exit status is 1.
"""

import gc
import sys

import torch
from torch.distributed import ReduceOp

import llama
import memory
import modes
import narrowcast as nc
import processes
import report

COLUMNS = [
    ("model", "model", "d"),
    ("format", "format", "s"),
    ("held", "held MiB", ".3f"),
    ("objects", "objects", ",d"),
    ("resident", "resident MiB", ".1f"),
]
ALLOWED = 2**16  # bytes that all models after the first ones may leave behind


def options():
    parser = report.parser(__doc__)
    add = parser.add_argument
    add("--models", type=int, default=50)
    add("--formats", default="mxfp8_e4m3,nvfp4", help="all, or names, in turn")
    add("--layers", type=int, default=2)
    add("--width", type=int, default=256)
    add("--vocabulary", type=int, default=512)
    processes.add_options(parser)
    parser.set_defaults(ranks=1)
    report.add_options(parser)
    args = parser.parse_args()
    args.formats = nc.formats() if args.formats == "all" else args.formats.split(",")
    if args.models <= len(args.formats):
        parser.error(f"more than {len(args.formats)} models are needed: the first fill caches")
    return args


def train(format, args, mesh):
    """A model's whole life."""
    model, optimizer = modes.build(modes.Mode(f"nc:{format}", eager=True), args, mesh)
    tokens = llama.batch(2, 32, args.vocabulary, args.device, mesh.get_local_rank())
    for _ in range(2):
        loss = model(*tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    if not torch.isfinite(loss):
        raise FloatingPointError(f"{format}: the loss is {loss.item()}")


def measure(args, mesh) -> list[dict]:
    """A row a model."""
    rows, held = [], memory.held(args.device)
    for number in range(args.models):
        format = args.formats[number % len(args.formats)]
        train(format, args, mesh)
        held = memory.settled(args.device, held)
        most = processes.reduced(held, args.device, ReduceOp.MAX)
        row = {"model": number + 1, "format": format, "held": most / 2**20}
        row["objects"] = len(gc.get_objects())
        if resident := memory.resident():
            row["resident"] = resident / 2**20
        rows.append(row)
        if mesh.get_local_rank() == 0:
            report.progress(f"model {number + 1} of {args.models}, {format}: {held} bytes held")
    return rows


def main() -> int:
    args = options()
    if ranks := processes.must_start(args):
        return processes.start(ranks)
    with processes.mesh(args.device) as mesh:
        rows = measure(args, mesh)
        rank = mesh.get_local_rank()
    first = rows[len(args.formats) - 1]  # each format has been used once
    left = (rows[-1]["held"] - first["held"]) * 2**20
    if rank == 0:
        print(report.table(rows, COLUMNS))
        models = len(rows) - first["model"]
        print(f"\n{left:.0f} bytes left by {models} models after the first {first['model']}")
        report.write_json(rows, args.json)
    return int(left > ALLOWED)


if __name__ == "__main__":
    sys.exit(main())
