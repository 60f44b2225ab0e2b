"""Host time on one device: what Python and launches cost, however fast the device is.

    python tests/bench/host_time.py [--device cpu] [--formats all] [--json host.jsonl]

Three tables: linear layers with a quantized weight beside plain bf16's, FusedAdam.step() as a line
over the number of parameters, and nc.quantize. On a GPU a long kernel keeps the stream busy while
calls are timed, so that none waits for the device and none is slowed by it. On the CPU tensors are
tiny and one thread works, but what is computed counts.
"""

import statistics
import sys

import torch
import torch.nn.functional as F
from torch import nn

import narrowcast as nc
import processes
import report
from stopwatch import Stopwatch

LINEAR_COLUMNS = [
    ("format", "linear, bf16 activations", "s"),
    ("matmul", "matmul", "s"),
    ("size", "weight", "s"),
    ("plain_forward_us", "bf16 forward us", ".1f"),
    ("forward_us", "quantized", ".1f"),
    ("forward_ratio", "ratio", ".2f"),
    ("plain_backward_us", "bf16 backward us", ".1f"),
    ("backward_us", "quantized", ".1f"),
    ("backward_ratio", "ratio", ".2f"),
]
STEP_COLUMNS = [
    ("format", "FusedAdam.step()", "s"),
    ("device", "on", "s"),
    ("intercept_us", "us", ".1f"),
    ("slope_us", "+ us a parameter", ".3f"),
    ("smallest_us", "fewest parameters, us", ".1f"),
    ("largest_us", "most, us", ".1f"),
    ("target", "within 40 + 0.5", "s"),
]
QUANTIZE_COLUMNS = [
    ("format", "nc.quantize", "s"),
    ("size", "tensor", "s"),
    ("us", "us", ".1f"),
]
COUNTS = (10, 25, 50, 100, 200, 400)
TARGET_INTERCEPT, TARGET_SLOPE = 40.0, 0.5  # microseconds, the latter a parameter
ROWS = 16  # of the activations
CALLS = 10  # in a sample


def options():
    parser = report.parser(__doc__)
    add = parser.add_argument
    add("--formats", default="mxfp8_e4m3,nvfp4", help="all, or names; default: %(default)s")
    add("--sizes", help="of square weights; default: 256,1024,4096, on the CPU 64")
    add("--counts", help=f"of step()'s parameters; default: {','.join(map(str, COUNTS))}")
    add("--samples", type=int, default=30, help="of each figure, which is their median")
    processes.add_device_option(parser)
    report.add_options(parser)
    args = parser.parse_args()
    args.formats = nc.formats() if args.formats == "all" else args.formats.split(",")
    sizes = args.sizes or ("256,1024,4096" if args.device == "cuda" else "64")
    args.sizes = [int(size) for size in sizes.split(",")]
    args.counts = [int(count) for count in args.counts.split(",")] if args.counts else COUNTS
    if len(set(args.counts)) < 2:
        parser.error("--counts: a line needs two different numbers")
    return args


def linear_rows(formats, sizes, watch) -> list[dict]:
    """F.linear with a quantized weight beside bf16's, forward and backward."""
    rows = []
    for size in sizes:
        plain = linear_microseconds(None, size, watch)
        for name, matmul in _with_products(formats):
            forward, backward = linear_microseconds(name, size, watch, matmul)
            rows.append(
                {
                    "format": name,
                    "matmul": matmul,
                    "size": f"{size} x {size}",
                    "plain_forward_us": plain[0],
                    "forward_us": forward,
                    "forward_ratio": forward / plain[0],
                    "plain_backward_us": plain[1],
                    "backward_us": backward,
                    "backward_ratio": backward / plain[1],
                }
            )
    return rows


def _with_products(formats):
    """Each format with each kind of products that it has."""
    for name in formats:
        yield name, "dequantized"
        if nc.format(name).matmul:
            yield name, "scaled"


def linear_microseconds(format, size, watch, matmul="dequantized"):
    """Of a forward, and of its backward."""
    weight = weights([(size, size)], watch.device, torch.bfloat16, format, matmul)[0]
    x = torch.randn(ROWS, size, device=watch.device, dtype=torch.bfloat16, requires_grad=True)
    gradient = torch.randn_like(x)

    def forward(_):
        return [F.linear(x, weight) for _ in range(CALLS)]

    def backward(outputs):
        for y in outputs:
            torch.autograd.grad(y, (x, weight), gradient)

    return [us / CALLS for us in watch.microseconds(forward, backward)]


def weights(
    shapes, device, dtype=torch.float32, format=None, matmul="dequantized"
) -> list[nn.Parameter]:
    """Parameters without values that matter, quantized if a format is given."""
    layers = [nn.Linear(n, m, bias=False, device=device, dtype=dtype) for m, n in shapes]
    module = nn.ModuleList(layers)
    if format is not None:
        nc.convert(module, format, matmul=matmul)
    return list(module.parameters())


def step_rows(formats, counts, watch) -> list[dict]:
    """FusedAdam.step() over many tiny weights; None among the formats: plain fp32 ones."""
    rows = []
    for name in formats:
        times = [step_microseconds(name, count, watch) for count in counts]
        slope, intercept = statistics.linear_regression(counts, times)
        within = intercept <= TARGET_INTERCEPT and slope <= TARGET_SLOPE
        rows.append(
            {
                "format": name or "plain",
                "device": watch.device,
                "intercept_us": intercept,
                "slope_us": slope,
                "smallest_us": times[0],
                "largest_us": times[-1],
                "counts": list(counts),
                "us": times,
                "target": "yes" if within else "no",
            }
        )
    return rows


def step_microseconds(format, count, watch) -> float:
    parameters = weights([(32, 32)] * count, watch.device, format=format)
    for parameter in parameters:
        parameter.grad = torch.zeros(parameter.shape, device=watch.device, dtype=parameter.dtype)
    optimizer = nc.FusedAdam(parameters, lr=1e-6)

    def steps(_):
        for _ in range(CALLS):
            optimizer.step()

    return watch.microseconds(steps)[0] / CALLS


def quantize_rows(formats, sizes, watch) -> list[dict]:
    """nc.quantize of bf16, both usages."""
    rows = []
    for size in sizes:
        x = torch.randn(size, size, device=watch.device, dtype=torch.bfloat16)
        for name in formats:

            def quantize(_, x=x, name=name):
                for _ in range(CALLS):
                    nc.quantize(x, name)

            us = watch.microseconds(quantize)[0] / CALLS
            rows.append({"format": name, "size": f"{size} x {size}", "us": us})
    return rows


def print_steps(formats, device) -> None:
    """The table of FusedAdam.step() alone, with plain parameters for comparison."""
    watch = Stopwatch(device, samples=30)
    print(report.table(step_rows((None, *formats), COUNTS, watch), STEP_COLUMNS), flush=True)


def main() -> int:
    args = options()
    watch = Stopwatch(args.device, args.samples)
    parts = [
        ("linear", LINEAR_COLUMNS, lambda: linear_rows(args.formats, args.sizes, watch)),
        ("step", STEP_COLUMNS, lambda: step_rows((None, *args.formats), args.counts, watch)),
        ("quantize", QUANTIZE_COLUMNS, lambda: quantize_rows(args.formats, args.sizes, watch)),
    ]
    found = []
    for name, columns, work in parts:
        report.progress(f"{name} on {args.device} ...")
        rows = work()
        print(report.table(rows, columns) + "\n", flush=True)
        found += [{"part": name, "device": args.device} | row for row in rows]
    report.write_json(found, args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
