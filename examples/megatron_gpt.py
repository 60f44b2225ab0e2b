"""Trains a small GPT of Megatron-Core on bytes, its weights kept and gathered in a narrow format.

    python examples/megatron_gpt.py --device cpu --ranks 2 --baseline     # starts its own ranks
    python examples/megatron_gpt.py --device cpu --ranks 4 --tp 2
    torchrun --nproc-per-node 4 examples/megatron_gpt.py --tp 2 --format nvfp4 --overlap

What narrowcast replaces is the spec of the layers, DistributedDataParallel and
get_megatron_optimizer; schedules, clipping, the scheduler and checkpoints are Megatron's.
"""

import argparse
import os
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from megatron.core import parallel_state

import narrowcast as nc
from launch import end_ranks, start_ranks
from megatron_on_cpu import on_cpu
from megatron_run import Training
from text import read


def options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--format", default="mxfp8_e4m3", choices=nc.formats())
    parser.add_argument("--matmul", default="dequantized", choices=["dequantized", "scaled"])
    parser.add_argument("--tp", type=int, default=1, help="tensor-parallel ranks; the rest is DP")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=8, help="windows a step, over all ranks")
    parser.add_argument("--time", type=int, default=128, help="bytes in a window")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--text", help="a file or folder; default: Python's standard library")
    parser.add_argument("--device", choices=["cpu", "cuda"], help="default: cuda if there is one")
    parser.add_argument("--ranks", type=int, default=2, help="processes, if torchrun starts none")
    parser.add_argument("--baseline", action="store_true", help="train Megatron's own bf16 first")
    parser.add_argument("--overlap", action="store_true", help="communicate beside computation")
    parser.add_argument("--save", type=Path, help="a new folder for a checkpoint of the end")
    parser.add_argument("--load", type=Path, help="a checkpoint to go on from")
    args = parser.parse_args()
    args.device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    ranks = int(os.environ.get("WORLD_SIZE", args.ranks))
    if ranks % args.tp != 0:
        parser.error(f"--tp {args.tp} does not divide {ranks} ranks")
    if args.batch % (ranks // args.tp) != 0:
        parser.error(f"--batch {args.batch} is not shared by {ranks // args.tp} DP ranks")
    if args.matmul == "scaled" and not nc.format(args.format).matmul:
        parser.error(f"--matmul scaled: {args.format} has none")
    if args.load is not None and not args.load.is_dir():
        parser.error(f"--load {args.load}: no such folder")
    if args.save is not None and args.save.exists():
        parser.error(f"--save {args.save} exists")
    return args


def measured(args, format, texts):
    """Trains and tells."""
    training, held_out = texts
    one = Training(args, format)
    if args.load is not None and format is not None:
        one.load(args.load)
    start = time.perf_counter()
    one.run(training)
    seconds = time.perf_counter() - start
    bits = one.forward(held_out, 0, 16, forward_only=True)
    if args.save is not None and format is not None:
        one.save(args.save)
    milliseconds = sorted(one.optimizer_ms)[len(one.optimizer_ms) // 2] if one.optimizer_ms else 0.0
    return {"bits": bits, "bytes": one.bytes_gathered(), "ms": milliseconds, "seconds": seconds}


def report(args, results):
    for name, one in results.items():
        print(
            f"{name}: {one['bits']:.4f} bits per byte of held-out text, {one['bytes']:,} bytes of "
            f"weights gathered a step, optimizer {one['ms']:.2f} ms, {one['seconds']:.1f} s"
        )
    if args.baseline:
        narrow, plain = results[args.format], results["bf16"]
        share = f", {narrow['bytes'] / plain['bytes']:.3f} of the bytes" if plain["bytes"] else ""
        print(f"against bf16: {narrow['bits'] - plain['bits']:+.4f} bits per byte{share}")


def main():
    args = options()
    if "RANK" not in os.environ:
        return start_ranks(args.ranks)
    if args.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if args.device == "cuda" else "gloo")
    parallel_state.initialize_model_parallel(args.tp)
    with nullcontext() if args.device == "cuda" else on_cpu():
        texts = read(args.text)
        results = {"bf16": measured(args, None, texts)} if args.baseline else {}
        results[args.format] = measured(args, args.format, texts)
    if dist.get_rank() == 0:
        report(args, results)
    end_ranks()
    return 0


if __name__ == "__main__":
    sys.exit(main())
