"""What `make bench` runs: the compiled benchmarks, then the optimizers as Python sees them.

usage: bench.py BUILD_FOLDER [FORMAT ...]
"""

from __future__ import annotations

import itertools
import math
import statistics
import subprocess
import sys
from functools import partial
from pathlib import Path

import torch

import host_time
import narrowcast as nc
from narrowcast import _C
from narrowcast.benchmark.weights import LAYER, Weights
from narrowcast.master import casts

# Llama-3-8B's linear layers, four blocks of them: 872M parameters.
LAYERS = 4
REPEATS = 30
CONSTANTS = {"lr": 1e-6, "betas": (0.9, 0.95), "weight_decay": 0.1}
OPTIMIZERS = {
    "torch AdamW(fused=True)": partial(torch.optim.AdamW, fused=True),
    "torch AdamW(foreach=True)": partial(torch.optim.AdamW, foreach=True),
    "FusedAdam": nc.FusedAdam,
}


def median_milliseconds(work) -> float:
    """Median over REPEATS of the device time of work(), by CUDA events."""
    for _ in range(3):
        work()
    times = []
    for _ in range(REPEATS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def price_of(optimizer_of, format, made: Weights, milliseconds_of) -> float:
    """Of float32 weights, plain if the format is None: the milliseconds of an optimizer's step and
    of the casts that the next product makes.
    """
    weights = made.make(format)
    optimizer = optimizer_of(weights, **CONSTANTS)
    narrow = [weight for weight in weights if isinstance(weight, nc.MasterWeight)]
    for weight in narrow:
        casts.before_product(weight.cell)  # later casts are of the weights that were read before

    def step_and_cast():
        optimizer.step()
        if narrow:
            casts.before_product(narrow[0].cell)  # it casts all stale weights together

    return milliseconds_of(step_and_cast)


def compare_optimizers(formats) -> None:
    print("a step and the casts after it, fp32 weights and gradients:")
    weights = Weights(LAYERS * sum(map(math.prod, LAYER)), "cuda")
    for name in (None, *formats):
        for label, optimizer_of in OPTIMIZERS.items():
            milliseconds = price_of(optimizer_of, name, weights, median_milliseconds)
            print(f"{name or 'plain':22s} {label:26s} {milliseconds:9.3f} ms", flush=True)
            torch.cuda.empty_cache()


def copy_milliseconds(moved: int) -> float:
    """Of a copy that reads and writes so many bytes in all."""
    source = torch.empty(moved // 2, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return median_milliseconds(lambda: target.copy_(source))


def compare_reductions(formats) -> None:
    """What a rank casts and adds of one layer's gradients in a reduce-scatter in a format."""
    print("a reduce-scatter in a format, share of copy on the bytes that are read and written:")
    whole = sum(map(math.prod, LAYER))
    for name in (one for one in formats if nc.format(one).casts_parts):
        for count, dtype in itertools.product((2, 8), (torch.float32, torch.bfloat16)):
            plugin, part = nc.format(name).plugin, whole // count
            values = torch.randn(whole, device="cuda", dtype=dtype)
            total = values.new_empty(part)
            sent = _C.part_buffers(plugin, values, count)[0]
            works = {
                "cast": partial(_C.cast_parts, plugin, values, sent, count, 0, None),
                "add": partial(_C.add_parts, plugin, values, sent, total, count, 0, count),
            }
            moved = {
                "cast": (count - 1) * part * dtype.itemsize + sent.numel(),
                "add": 2 * part * dtype.itemsize + sent.numel(),
            }
            print(f"{name:22s} {count} ranks, {dtype!s:14s}", end="")
            for work, function in works.items():
                milliseconds = median_milliseconds(function)
                share = copy_milliseconds(moved[work]) / milliseconds
                print(f"  {work} {milliseconds:7.3f} ms, {share:5.3f} of copy", end="")
            print(flush=True)


def main() -> None:
    build, *names = sys.argv[1:]
    formats = names or nc.formats()
    folder = Path(build) / "tests" / "bench"
    for program in (
        "bench_cpu",
        "bench_cuda",
        "bench_shards",
        "bench_flat_gather",
        "bench_activations",
    ):
        if (folder / program).exists():
            subprocess.run([folder / program, *formats], check=True)
    host_time.print_steps(formats, "cpu")
    if torch.cuda.is_available():
        compare_optimizers(formats)
        compare_reductions(formats)
        host_time.print_steps(formats, "cuda")


if __name__ == "__main__":
    main()
