"""Trains a small GPT on bytes, its weights kept and gathered in a narrow format under FSDP2.

    python examples/train.py --format nvfp4                    # starts its own ranks
    python examples/train.py --format nvfp4 --matmul scaled  # multiplies the bytes
    torchrun --nproc-per-node 2 examples/train.py --format mxfp8_e4m3

What narrowcast adds to an ordinary FSDP2 program are two lines: nc.convert and nc.optim.AdamW, in
whose place any other optimizer trains the weights too.
"""

import argparse
import json
import math
import os
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from tqdm import tqdm

import narrowcast as nc
from gpt import GPT, VOCABULARY
from launch import end_ranks, join_ranks, start_ranks
from measure import CountedAllGather, mean_over_ranks
from saving import Checkpoints
from text import read, windows


def options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    formats = [*nc.formats(), "plain"]
    parser.add_argument("--format", default="mxfp8_e4m3", choices=formats, help="of the weights")
    parser.add_argument(
        "--matmul",
        default="dequantized",
        choices=["dequantized", "scaled"],
        help="of linear layers",
    )
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--batch", type=int, default=8, help="windows a step, over all ranks")
    parser.add_argument("--time", type=int, default=128, help="bytes in a window")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--text", help="a file or folder; default: Python's standard library")
    parser.add_argument(
        "--device", choices=["cpu", "cuda"], help="default: cuda where a GPU and its kernels are"
    )
    parser.add_argument("--ranks", type=int, help="processes; default: 2, or 1 on one GPU")
    parser.add_argument("--bf16", action="store_true", help="compute in bfloat16")
    parser.add_argument("--checkpoints", type=Path, help="a folder to save to, and to go on from")
    parser.add_argument("--save-every", type=int, default=100, help="steps")
    parser.add_argument("--out", type=Path, help="where to write what the run measured, as JSON")
    args = parser.parse_args()
    able = [name for name in nc.formats() if nc.format(name).matmul]
    if args.matmul == "scaled" and args.format not in able:
        parser.error(f"--matmul scaled takes --format {', '.join(able)}, not {args.format}")
    args.name = args.format + ("-scaled" if args.matmul == "scaled" else "")
    for_gpu = torch.cuda.is_available() and all(nc.format(name).cuda for name in nc.formats())
    args.device = args.device or ("cuda" if for_gpu else "cpu")
    args.ranks = args.ranks or min(2, torch.cuda.device_count() if args.device == "cuda" else 2)
    return args


def build(args, mesh):
    """The model, sharded, its linear weights in the format; and its optimizer."""
    torch.manual_seed(args.seed)  # every rank, every format: one initialisation
    model = GPT(args.width, args.layers, args.width // 32).to(args.device)
    if args.format != "plain":
        nc.convert(model, args.format, matmul=args.matmul)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16 if args.bf16 else None)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = nc.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1)
    return model, optimizer


def loss_of(model, tokens, targets):
    """The mean cross entropy of the next byte, in nats."""
    logits = model(tokens).float()
    return F.cross_entropy(logits.view(-1, VOCABULARY), targets.reshape(-1))


@torch.no_grad()
def bits_per_byte(model, text, args, mesh):
    """Of 128 windows of held-out text, the same for every run; each rank takes its share."""
    tokens, targets = windows(text, 128, args.time, torch.Generator().manual_seed(0))
    share = slice(mesh.get_local_rank(), None, mesh.size())
    losses = [
        loss_of(model, t.to(args.device), y.to(args.device))
        for t, y in zip(tokens[share].split(16), targets[share].split(16), strict=True)
    ]
    return mean_over_ranks(torch.stack(losses).mean()).item() / math.log(2)


def train(args, mesh):
    """Runs all steps; returns what was measured."""
    rank, ranks = mesh.get_local_rank(), mesh.size()
    training, held_out = read(args.text)
    model, optimizer = build(args, mesh)
    gathered = CountedAllGather(model)
    warmup = max(1, args.steps // 10)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / warmup, 0.1 + 0.9 * (1 - step / args.steps)),
    )
    random = torch.Generator().manual_seed(args.seed + 1)
    losses, optimizer_ms = [], []
    checkpoints = Checkpoints(args.checkpoints, model, optimizer, scheduler, random)
    first = checkpoints.load()
    steps = range(first, args.steps)
    bar = tqdm(steps, args.name, args.steps, initial=first, disable=rank != 0, mininterval=0.5)
    for step in bar:
        tokens, targets = windows(training, args.batch, args.time, random)
        tokens, targets = tokens[rank::ranks].to(args.device), targets[rank::ranks].to(args.device)
        loss = loss_of(model, tokens, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer_ms.append(timed(optimizer.step, args.device))
        scheduler.step()
        optimizer.zero_grad()
        losses.append(mean_over_ranks(loss).item() / math.log(2))
        bar.set_postfix_str(f"{losses[-1]:.3f} bits per byte", refresh=False)
        if args.checkpoints and (step + 1) % args.save_every == 0:
            checkpoints.save(step + 1)
    gathered_per_step = gathered.bytes / max(1, len(steps))  # before the evaluation gathers more
    return {
        "format": args.format,
        "matmul": args.matmul,
        "ranks": ranks,
        "bits_per_byte": bits_per_byte(model, held_out, args, mesh),
        "gathered_bytes_per_step": gathered_per_step,
        "weight_bytes_per_rank": nc.summary(model).stored,  # float32 values apart
        "optimizer_ms": sorted(optimizer_ms)[len(optimizer_ms) // 2] if optimizer_ms else 0.0,
        "losses": losses,
    }


def timed(function, device):
    """Milliseconds of one call."""
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    function()
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e3


def main():
    args = options()
    if "RANK" not in os.environ:
        return start_ranks(args.ranks)
    mesh = join_ranks(args.device)
    result = train(args, mesh)
    if mesh.get_local_rank() == 0:
        print(f"{args.name}: {result['bits_per_byte']:.4f} bits per byte of held-out text")
        if args.out:
            args.out.parent.mkdir(parents=True, exist_ok=True)
            args.out.write_text(json.dumps(result))
    end_ranks()
    return 0


if __name__ == "__main__":
    sys.exit(main())
