"""Steps of narrowcast's optimizers beside torch's and other libraries', in one run.

    python tests/bench/optimizers.py                       # some 10 GB a row: see --millions
    python tests/bench/optimizers.py --formats nvfp4 --states float32 --json rows.jsonl --plot p.png

A row is an optimizer with its parameters, in the shapes of Llama-3-8B's linear layers; all rows'
steps are timed in turn. narrowcast's has every rule, state and format that is chosen, and gradients
in bfloat16; others have plain float32 weights and gradients: torch.optim.AdamW(fused=True), and,
where they are installed, the AdamW in eight bits of torchao, bitsandbytes and FlashOptim. "Of copy"
is the time of a copy that moves as many bytes as the step has to, by formula, in the same run.
"Host" is until step() returns. Muon has a program of its own, muon.py.
"""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import statistics
import sys
import time
from collections.abc import Callable

import torch

import narrowcast as nc
import processes
import report
from bench import LAYER, parameters
from narrowcast.registry import state_format

RULES = {"adamw": nc.optim.AdamW, "lion": nc.optim.Lion, "sgd": nc.optim.SGD}
OPTIONS = {"adamw": {}, "lion": {}, "sgd": {"momentum": 0.9}}
NUMBERS = {"adamw": 2, "lion": 1, "sgd": 1}  # that a rule keeps of an element
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# Of other libraries: the module, the class, and the bytes of an element's two moments.
OTHERS = {
    "torchao AdamW8bit": ("torchao.optim", "AdamW8bit", 2 * (1 + 4 / 256)),
    "bitsandbytes AdamW8bit": ("bitsandbytes.optim", "AdamW8bit", 2 * (1 + 4 / 256)),
    "FlashOptim FlashAdamW": ("flashoptim", "FlashAdamW", 2 * (1 + 2 / 32)),
}
COLUMNS = [
    ("optimizer", "optimizer", "s"),
    ("format", "weights", "s"),
    ("state", "state", "s"),
    ("ms", "ms/step", ".3f"),
    ("bytes", "bytes", ".2f"),
    ("of_copy", "of copy", ".3f"),
    ("of_torch", "of torch's", ".3f"),
    ("host_us", "host us", ".0f"),
]


@dataclasses.dataclass
class Row:
    """`bytes`: that a step moves of each element, read and written."""

    optimizer: str
    format: str
    state: str
    bytes: float
    step: Callable[[], None]


def options():
    parser = report.parser(__doc__)
    add = parser.add_argument
    add("--formats", default="mxfp8_e4m3", help="all, or names; default: %(default)s")
    add("--rules", default=",".join(RULES), help="default: %(default)s")
    states = ",".join((*DTYPES, *nc.state_formats()))
    add("--states", default=states, help="default: %(default)s")
    add("--millions", type=float, help="of parameters; default: 218, a layer; on the CPU 0.1")
    add("--rounds", type=int, default=20, help="of all optimizers")
    add("--plot", metavar="FILE", help="also draw the times; needs matplotlib")
    processes.add_device_option(parser)
    report.add_options(parser)
    args = parser.parse_args()
    args.formats = nc.formats() if args.formats == "all" else args.formats.split(",")
    args.rules, args.states = args.rules.split(","), args.states.split(",")
    for given, known in ((args.rules, RULES), (args.states, states.split(","))):
        if unknown := [one for one in given if one not in known]:
            parser.error(f"{', '.join(unknown)}: there are {', '.join(known)}")
    if args.millions is None:
        args.millions = 218 if args.device == "cuda" else 0.1
    return args


def shapes_of(millions: float) -> list[tuple[int, int]]:
    """Those of whole layers, or of a layer with fewer columns, of about so many parameters."""
    whole = sum(rows * columns for rows, columns in LAYER)
    if 1e6 * millions < whole:
        share = max(1, round(1e6 * millions / whole * 32))
        return [(rows // 32, columns * share // 32) for rows, columns in LAYER]
    return LAYER * round(1e6 * millions / whole)


def rows_of(args) -> list[Row]:
    every = itertools.product(args.rules, args.formats, args.states)
    chosen = [one for one in every if one[2] in DTYPES or one[0] == "adamw"]
    return [torchs(args), *others(args), *(own(*one, args) for one in chosen)]


def own(rule: str, format: str, state: str, args) -> Row:
    weights = parameters(shapes_of(args.millions), args.device, format=format)
    for weight in weights:
        gradient, weight.grad = weight.grad.bfloat16(), None
        weight.grad_dtype, weight.grad = None, gradient
    dtype = DTYPES.get(state, state)
    optimizer = RULES[rule](weights, lr=1e-6, state_dtype=dtype, **OPTIONS[rule])
    kept = dtype.itemsize if state in DTYPES else state_format(state).bits_per_element / 8
    f = nc.format(format)
    again = 4 if f.tensor_amax and not f.is_delayed else 0  # the cast reads the value once more
    stored = sum(usage.wire_bits for usage in (f.rowwise, f.columnwise)) / 8
    moved = 8 + 2 + 2 * NUMBERS[rule] * kept + again + stored
    return Row(f"nc.optim.{RULES[rule].__name__}", format, state, moved, optimizer.step)


def torchs(args) -> Row:
    weights = parameters(shapes_of(args.millions), args.device)
    optimizer = torch.optim.AdamW(weights, fused=True, lr=1e-6)
    return Row("torch.optim.AdamW", "plain", "float32", 8 + 4 + 16, optimizer.step)


def others(args) -> list[Row]:
    """Those that are installed, and make and take a step."""
    found = []
    for name, (module, kind, kept) in OTHERS.items():
        weights = None
        try:
            make = getattr(importlib.import_module(module), kind)
            weights = parameters(shapes_of(args.millions), args.device)
            optimizer = make(weights, lr=1e-6)
            optimizer.step()
        except Exception as error:
            report.progress(f"{name} is left out: {type(error).__name__}: {error}")
            continue
        found.append(Row(name, "plain", "8 bits", 8 + 4 + 2 * kept, optimizer.step))
    return found


def seconds(work, device: str) -> tuple[float, float]:
    """Of some work on the device, and of the host until the work is handed over."""
    processes.wait(device)
    begin = time.perf_counter()
    if device == "cpu":
        work()
        return (time.perf_counter() - begin,) * 2
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    events[0].record()
    begin = time.perf_counter()
    work()
    host = time.perf_counter() - begin
    events[1].record()
    processes.wait(device)
    return events[0].elapsed_time(events[1]) / 1e3, host


def measure(args) -> list[dict]:
    rows = rows_of(args)
    count = sum(rows * columns for rows, columns in shapes_of(args.millions))
    source = torch.empty(14 * count, dtype=torch.uint8, device=args.device)
    target = torch.empty_like(source)
    works = [lambda: target.copy_(source), *(row.step for row in rows)]
    samples = [[] for _ in works]
    for number in range(args.rounds + 3):
        for work, times in zip(works, samples, strict=True):
            sample = seconds(work, args.device)
            if number > 2:  # the first make state and tables
                times.append(sample)
    medians = [[statistics.median(part) for part in zip(*times, strict=True)] for times in samples]
    bytes_per_second = 28 * count / medians[0][0]
    found = []
    for row, (time_of_step, host) in zip(rows, medians[1:], strict=True):
        facts = {key: getattr(row, key) for key in ("optimizer", "format", "state", "bytes")}
        facts |= {"parameters": count, "ms": 1e3 * time_of_step, "host_us": 1e6 * host}
        facts["of_copy"] = row.bytes * count / bytes_per_second / time_of_step
        facts["of_torch"] = time_of_step / medians[1][0]
        facts["copy_gb_per_s"] = bytes_per_second / 1e9
        found.append(facts)
    return found


def main() -> int:
    args = options()
    rows = measure(args)
    print(report.table(rows, COLUMNS))
    first = rows[0]
    print(f"\n{first['parameters']:,} parameters; a copy moves {first['copy_gb_per_s']:,.0f} GB/s")
    report.write_json(rows, args.json)
    if args.plot:
        import optimizers_picture

        optimizers_picture.draw(rows, args.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
