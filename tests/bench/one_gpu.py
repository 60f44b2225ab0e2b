"""Training steps on one GPU, with no sharding: a user's own loop, eager, compiled, in CUDA graphs.

    python tests/bench/one_gpu.py [--modes bf16,nc:mxfp8_e4m3,scaled:fp8_e4m3] [--json one.jsonl]

A model in the proportions of Llama-3-8B with bf16 parameters, compiled as a whole: by
torch.compile(model), and with mode="reduce-overhead", which replays CUDA graphs. "captured" is
one graph of forward, backward and step, of the compiled model. bf16's optimizer is torch's fused
AdamW, the formats' is FusedAdam with float32 masters. All modes of a way take turns, in bursts of
steps: as in a user's loop the host is free to run ahead. Of small models it sets the pace: its time
is that until all has been handed over, of which the GPU's queue may hold it up.
"""

import statistics
import sys
import time

import torch

import llama
import modes
import narrowcast as nc
import report

WAYS = {"eager": None, "compiled": "default", "graphs": "reduce-overhead", "captured": "default"}
COLUMNS = [
    ("mode", "one GPU", "s"),
    ("way", "", "s"),
    ("ms", "ms a step", ".2f"),
    ("host_ms", "host", ".2f"),
    ("of_bf16", "of bf16", ".3f"),
]


def options():
    parser = report.parser(__doc__)
    add = parser.add_argument
    default = "bf16,nc:mxfp8_e4m3,nc:nvfp4,scaled:fp8_e4m3,scaled:fp8_block128"
    add("--modes", default=default, help="default: %(default)s")
    add("--ways", default=",".join(WAYS), help="default: %(default)s")
    add("--layers", type=int, default=12)
    add("--width", type=int, default=1024)
    add("--vocabulary", type=int, default=32000)
    add("--seq", type=int, default=1024, help="tokens in a sequence")
    add("--batch", type=int, default=8, help="sequences in a step")
    add("--bursts", type=int, default=8, help="timed, of each mode and way")
    add("--burst", type=int, default=10, help="steps in a burst, behind which the host waits")
    report.add_options(parser)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("there is no GPU")
    args.ways = args.ways.split(",")
    if unknown := [way for way in args.ways if way not in WAYS]:
        parser.error(f"--ways: {unknown[0]!r} is none of {', '.join(WAYS)}")
    try:
        args.modes = modes.selection(args.modes, None)
    except ValueError as error:
        parser.error(str(error))
    if wrong := [mode for mode in args.modes if mode.eager or mode.weights == modes.TORCHAO]:
        parser.error(f"--modes: {wrong[0]} is none of bf16, nc:FORMAT, scaled:FORMAT")
    return args


def trainer(mode, way, args):
    """A function that takes a step."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = llama.Llama(args.layers, args.width, args.vocabulary).bfloat16()
    llama.initialize(model)
    given = {**modes.ADAM, "capturable": way == "captured"}
    if mode.format:
        mode.convert(model)
        optimizer = nc.FusedAdam(model.parameters(), **given)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), fused=True, **given)
    run = model if WAYS[way] is None else torch.compile(model, mode=WAYS[way])
    data = llama.batch(args.batch, args.seq, args.vocabulary, "cuda", 0)

    def step():
        torch.compiler.cudagraph_mark_step_begin()
        run(*data).backward()
        optimizer.step()
        optimizer.zero_grad()

    return captured(step) if way == "captured" else step


def captured(step):
    """The replay of a graph of the step."""
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def milliseconds(steps, args) -> list[tuple[float, float]]:
    """Of each mode: medians of its bursts, for a step, and of the host's part of them."""
    samples = [([], []) for _ in steps]
    for _ in range(args.bursts):
        for step, (whole, host) in zip(steps, samples, strict=True):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(args.burst):
                step()
            host.append(time.perf_counter() - begin)
            torch.cuda.synchronize()
            whole.append(time.perf_counter() - begin)
    return [
        tuple(1e3 * statistics.median(times) / args.burst for times in pair) for pair in samples
    ]


def rows(way, args) -> list[dict]:
    torch._dynamo.reset()
    steps = []
    for mode in args.modes:
        report.progress(f"{mode}, {way} ...")
        steps.append(trainer(mode, way, args))
        for _ in range(4):  # compiles, records graphs
            steps[-1]()
    times = milliseconds(steps, args)
    bf16 = times[0][0]
    return [
        {"mode": str(mode), "way": way, "ms": ms, "host_ms": host, "of_bf16": bf16 / ms}
        for mode, (ms, host) in zip(args.modes, times, strict=True)
    ]


def main() -> int:
    args = options()
    found = []
    for way in args.ways:
        found += rows(way, args)
        torch.cuda.empty_cache()
    print(report.table(found, COLUMNS), flush=True)
    report.write_json(found, args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
