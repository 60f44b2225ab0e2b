"""A step of nc.optim.Muon beside AdamW's and torch's own Muon, in one run.

    python tests/bench/muon.py                        # a rank a GPU, or one
    python tests/bench/muon.py --formats nvfp4 --json muon.jsonl

The model is train_step.py's; its blocks' linear weights are in a format, and Muon's; embedding,
head and norms are AdamW's. Gradients are random. Steps of all optimizers are timed in turn. Beside
them: the orthogonalization of the matrices that a rank owns, alone, and its rate, by formula, as a
share of a large bfloat16 product's in the same run. torch.optim.Muon, on one rank alone, has plain
weights, and writes no bytes.
"""

import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

import llama
import modes
import narrowcast as nc
import processes
import report
from narrowcast.muon import newton_schulz
from narrowcast.muon.exchange import deal
from narrowcast.tensor import dtensors

STEPS = 5  # of an iteration, the default of torch and narrowcast
COLUMNS = [
    ("optimizer", "optimizer", "s"),
    ("format", "weights", "s"),
    ("ranks", "ranks", "d"),
    ("ms", "ms/step", ".2f"),
    ("products_ms", "products alone", ".2f"),
    ("of_matmul", "of matmul", ".3f"),
    ("rest_ms", "all else", ".2f"),
    ("rest_of_adamw", "of AdamW", ".2f"),
]


def options():
    parser = report.parser(__doc__)
    add = parser.add_argument
    small = "; fewer on the CPU"
    add("--formats", default="mxfp8_e4m3", help="names; default: %(default)s")
    add("--layers", type=int, help="default: 6" + small)
    add("--width", type=int, help="default: 4096, Llama-3-8B's" + small)
    add("--vocabulary", type=int, help="default: 32000" + small)
    add("--rounds", type=int, default=10, help="of all optimizers")
    processes.add_options(parser)
    report.add_options(parser)
    args = parser.parse_args()
    sizes = {"layers": (6, 2), "width": (4096, 256), "vocabulary": (32000, 512)}
    for name, (on_gpu, on_cpu) in sizes.items():
        if getattr(args, name) is None:
            setattr(args, name, on_gpu if args.device == "cuda" else on_cpu)
    return args


def model_of(format: str | None, args, mesh):
    """Sharded, with random gradients."""
    model = modes.model_on_meta(modes.parse(f"nc:{format}" if format else modes.PLAIN), args)
    if mesh.size() > 1:
        modes.shard(model, mesh)
    model.to_empty(device=args.device)
    llama.initialize(model)
    for parameter in model.parameters():
        local = torch.empty(dtensors.local_of(parameter).shape, device=args.device)
        parameter.grad = dtensors.like(parameter, local.normal_(std=1e-3))
    return model


def optimizers(format: str, args, mesh) -> dict:
    """By name."""
    own = model_of(format, args, mesh)
    found = {
        "nc.optim.AdamW": nc.optim.AdamW(model_of(format, args, mesh).parameters()),
        "nc.optim.Muon": nc.optim.Muon(own.named_parameters(), filter=modes.is_hidden_matrix),
    }
    if mesh.size() == 1:
        plain = model_of(None, args, mesh)
        named = [*plain.named_parameters()]
        is_own = modes.is_hidden_matrix
        found["torch.optim.Muon"] = torch.optim.Muon([p for n, p in named if is_own(n, p)])
        others = [p for n, p in named if not is_own(n, p)]
        found["and its AdamW"] = torch.optim.AdamW(others, fused=True)
    return found


def owned(optimizer, mesh) -> list[tuple[int, int]]:
    """The shapes of the matrices that this rank orthogonalizes."""
    group = optimizer.param_groups[0]
    shapes = [tuple(one.shape) for one in group["params"]]
    if not isinstance(group["params"][0], DTensor):
        return shapes
    queues = deal([newton_schulz.cost(*shape) for shape in shapes], mesh.size())
    return [shapes[task] for task in queues[mesh.get_local_rank()]]


def milliseconds(work, args) -> float:
    """Of some work that all ranks begin together, until the slowest one's device is through."""
    dist.barrier()
    processes.wait(args.device)
    begin = time.perf_counter()
    work()
    processes.wait(args.device)
    seconds = time.perf_counter() - begin
    return 1e3 * processes.reduced(seconds, args.device, dist.ReduceOp.MAX)


def measure(format: str, args, mesh) -> list[dict]:
    group = nc.optim.Muon([torch.nn.Parameter(torch.ones(1, 1))]).param_groups[0]
    constants = group["ns_coefficients"], STEPS, group["eps"]
    every = optimizers(format, args, mesh)
    shapes = owned(every["nc.optim.Muon"], mesh)
    inputs = [torch.randn(shape, device=args.device).bfloat16() for shape in shapes]
    side = 8192 if args.device == "cuda" else 512
    square = torch.randn(side, side, device=args.device).bfloat16()

    def products():
        for one in inputs:
            newton_schulz.orthogonalize(one.clone(), *constants)

    works = {name: one.step for name, one in every.items()}
    works |= {"products": products, "matmul": lambda: square @ square}
    times = {name: [] for name in works}
    for number in range(args.rounds + 2):
        for name, work in works.items():
            ms = milliseconds(work, args)
            if number > 1:  # the first make state and tables
                times[name].append(ms)
    ms = {name: statistics.median(each) for name, each in times.items()}
    return rows_of(format, ms, shapes, side, mesh)


def rows_of(format, ms, shapes, side, mesh) -> list[dict]:
    flops = 2 * STEPS * sum(newton_schulz.cost(*shape) for shape in shapes)
    rate = 2 * side**3 / ms["matmul"]
    torchs = ms.get("torch.optim.Muon", 0) + ms.get("and its AdamW", 0)
    rows = []
    for name in ("nc.optim.AdamW", "nc.optim.Muon", *["torch.optim.Muon"] * bool(torchs)):
        row = {"optimizer": name, "format": format, "ranks": mesh.size(), "ms": ms[name]}
        if name == "torch.optim.Muon":
            row |= {"format": "plain", "ms": torchs}
        if name == "nc.optim.Muon":
            rest = ms[name] - ms["products"]
            row |= {"products_ms": ms["products"], "of_matmul": flops / ms["products"] / rate}
            row |= {"rest_ms": rest, "rest_of_adamw": rest / ms["nc.optim.AdamW"]}
        rows.append(row)
    return rows


def main() -> int:
    args = options()
    if ranks := processes.must_start(args):
        return processes.start(ranks)
    rows = []
    with processes.mesh(args.device) as mesh:
        for name in args.formats.split(","):
            rows += measure(name, args, mesh)
        if mesh.get_local_rank() == 0:
            print(report.table(rows, COLUMNS))
            report.write_json(rows, args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
