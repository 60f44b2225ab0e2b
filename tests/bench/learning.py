"""How a GPT learns with quantized weights beside bf16's, on one device or on several ranks.

    python tests/bench/learning.py --json learning.jsonl
    python tests/bench/learning.py --modes bf16,nc:nvfp4,scaled:nvfp4 --seed 1 --json more.jsonl
    python tests/bench/learning.py --ranks 2 --modes bf16,bf16+r --json narrow.jsonl
    python tests/bench/learning_report.py learning.jsonl   # the page and the curves

The model and the text are the demo's (examples/gpt.py, examples/text.py). A mode is the kind of the
blocks' linear weights: bf16, nc:FORMAT, or scaled:FORMAT (products of the bytes); with +s behind it
moments are in a state format, and with +m Muon updates these matrices. Embedding, head and norms
are bf16 in all. Everything else is the same in every mode: the first weights, the windows of text
and their order, bf16 activations and gradients, and AdamW with float32 masters. Modes are trained
one after another, and each one's line of JSON is written when it is done. The host waits for the
device only where held-out text is evaluated.

Several ranks share each step's windows, under FSDP2 with bf16 products, and gradients are reduced
in float32; with +b in bfloat16, with +r in the format of --gradient-format.
"""

import gc
import hashlib
import math
import os
import platform
import statistics
import sys
import time
import traceback

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import modes
import narrowcast as nc
import processes
import report
from demo_parts import GPT, VOCABULARY, read, windows

MODES = "bf16,scaled:fp8_e4m3,scaled:fp8_block128,scaled:mxfp8_e4m3,scaled:nvfp4"
WARMUP = 0.05  # of the steps: 100 of 2000
LAST_RATE = 0.1  # of the highest learning rate: where the cosine ends
CLIPPED_AT = 1.0  # norm of all gradients
ADAM = {"betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
HELD_OUT_SEED = 0  # whatever the run's, so that all runs are measured on the same windows
GIB = 2**30


def options():
    parser = report.parser(__doc__)
    add = parser.add_argument
    add("--modes", default=MODES, help="default: %(default)s")
    small = "; fewer on the CPU"
    add("--steps", type=int, help="default: 2000" + small)
    add("--layers", type=int, help="default: 10" + small)
    add("--width", type=int, help="default: 1024, which gives 126M parameters" + small)
    add("--seq", type=int, help="bytes in a window; default: 1024" + small)
    add("--batch", type=int, default=8, help="windows a step")
    add("--lr", type=float, default=6e-4, help="the highest learning rate; default: %(default)s")
    add("--seed", type=int, default=0, help="of the first weights and of the windows' order")
    add("--every", type=int, help="steps between evaluations; default: 100" + small)
    add("--held-out", type=int, default=16, help="batches of held-out windows; default: 16")
    add("--compile", action="store_true", help="each block; all is eager otherwise")
    form = "of gradients in modes with +r; default: %(default)s"
    add("--gradient-format", default="mxfp8_e4m3", metavar="FORMAT", help=form)
    add("--gradient-rounding", default="nearest", choices=["nearest", "stochastic"], help="of them")
    processes.add_options(parser)
    parser.set_defaults(ranks=1)
    report.add_options(parser)
    args = parser.parse_args()
    sizes = {"steps": (2000, 20), "layers": (10, 2), "width": (1024, 128), "seq": (1024, 64)}
    for name, (on_gpu, on_cpu) in (sizes | {"every": (100, 5)}).items():
        if getattr(args, name) is None:
            setattr(args, name, on_gpu if args.device == "cuda" else on_cpu)
        if getattr(args, name) < 1:
            parser.error(f"--{name} is at least 1")
    args.heads = max(1, args.width // 128)
    try:
        args.modes = modes.selection(args.modes, None)
    except ValueError as error:
        parser.error(str(error))
    args.world = int(os.environ.get("WORLD_SIZE", args.ranks))
    if args.batch % args.world:
        parser.error(f"--batch {args.batch} is not a multiple of {args.world} ranks")
    for mode in reversed(args.modes):  # a baseline that was not asked for comes first
        if mode.gradients and args.world == 1:
            parser.error(f"{mode}: one rank sends no gradients; see --ranks")
        if mode.eager or mode.weights == modes.TORCHAO:
            parser.error(
                f"{mode}: a mode is bf16, nc:FORMAT or scaled:FORMAT here, with +s or +m, and not "
                "eager, see --compile"
            )
    return args


class Text:
    """What all runs read: the windows of every step, drawn ahead, and the held-out ones. Bytes, on
    the device: [steps, batch, seq] each, and [held_out, batch, seq], of which a rank has its part
    of each batch.
    """

    def __init__(self, args, rank: int):
        self.rank = rank
        training, held_out = read()
        random = torch.Generator().manual_seed(args.seed + 1)
        self.steps = self._batches(training, args.steps, args, random)
        same = torch.Generator().manual_seed(HELD_OUT_SEED)
        self.held_out = self._batches(held_out, args.held_out, args, same)
        checksum = hashlib.sha256(training.numpy())
        checksum.update(held_out.numpy())
        self.facts = {
            "training_bytes": len(training),
            "held_out_bytes": len(held_out),
            "text_sha256": checksum.hexdigest(),
        }

    def _batches(self, text, count, args, generator):
        """Inputs and targets, of this rank."""
        drawn = windows(text, count * args.batch, args.seq, generator)
        shaped = (part.to(torch.uint8).view(count, args.batch, args.seq) for part in drawn)
        return [part[:, self.rank :: args.world].to(args.device) for part in shaped]


class Training:
    """A mode's model and optimizer."""

    def __init__(self, mode, args, text, mesh):
        self.mode, self.args, self.text = mode, args, text
        is_sharded = mesh.size() > 1
        torch.manual_seed(args.seed)
        model = GPT(args.width, args.layers, args.heads)  # on the CPU: equal on every machine
        self.model = model.to(args.device, None if is_sharded else torch.bfloat16)
        if mode.format:
            convert = {"filter": modes.is_converted, "matmul": mode.matmul}
            nc.convert(self.model, mode.format, **convert)
        if is_sharded:
            modes.shard(self.model, mesh, args.compile, modes.reduce_dtype(mode))
            if mode.gradients == modes.NARROW:
                chosen = args.gradient_format, args.gradient_rounding
                nc.set_reduce_scatter_format(self.model, *chosen)
        elif args.compile:
            for block in self.model.blocks:
                block.compile()
        self.optimizer = modes.optimizer_of(mode, self.model, lr=args.lr, **ADAM)
        self.losses = torch.zeros(args.steps, device=args.device)  # in nats, of training

    def step(self, number: int):
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(number, self.args)
        loss = self._loss(*(part[number] for part in self.text.steps))
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), CLIPPED_AT)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.losses[number] = loss.detach()

    @torch.no_grad()
    def held_out(self) -> float:
        """Bits per byte of the held-out windows, as the mode multiplies."""
        batches = zip(*self.text.held_out, strict=True)
        return averaged([self._loss(*batch) for batch in batches], self.args).mean().item()

    def _loss(self, tokens, targets):
        """The mean cross entropy of the next byte, in nats."""
        logits = self.model(tokens.long()).float().view(-1, VOCABULARY)
        return F.cross_entropy(logits, targets.long().view(-1))


def averaged(losses, args) -> torch.Tensor:
    """Of all ranks, in bits per byte, from nats."""
    losses = torch.stack([*losses]) / math.log(2) / args.world
    dist.all_reduce(losses)
    return losses


def warmup_steps(args) -> int:
    return max(1, round(WARMUP * args.steps))


def learning_rate(step: int, args) -> float:
    """A linear warm-up, then half a cosine."""
    warmup = warmup_steps(args)
    if step < warmup:
        return args.lr * (step + 1) / warmup
    done = (step - warmup) / max(1, args.steps - warmup)
    return args.lr * (LAST_RATE + (1 - LAST_RATE) * (1 + math.cos(math.pi * done)) / 2)


def train(mode, args, text, mesh) -> dict:
    """Runs all steps of a mode; what was measured."""
    training = Training(mode, args, text, mesh)
    held_out, seconds, paces, done = [], 0.0, [], 0
    while done < args.steps:
        count = min(args.every, args.steps - done)
        processes.wait(args.device)
        begin = time.perf_counter()
        for number in range(done, done + count):
            training.step(number)
        processes.wait(args.device)
        stretch = time.perf_counter() - begin
        done, seconds = done + count, seconds + stretch
        paces.append(stretch / count)
        held_out.append([done, round(training.held_out(), 5)])
        if text.rank == 0:
            report.progress(
                f"{mode}: {done} of {args.steps} steps, {held_out[-1][1]:.4f} bits per byte of "
                f"held-out text, {1e3 * paces[-1]:.1f} ms a step"
            )
    weights = list(training.model.parameters())
    quantized = [weight for weight in weights if isinstance(weight, nc.MasterWeight)]
    return {
        "losses": [round(loss, 5) for loss in averaged(training.losses, args).tolist()],
        "held_out": held_out,
        "seconds": seconds,  # of training alone
        # The median over the evaluations' intervals: the first one has what happens but once.
        "tokens_per_s": args.batch * args.seq / statistics.median(paces),
        "peak_gib": torch.cuda.max_memory_allocated() / GIB if args.device == "cuda" else None,
        "parameters": sum(weight.numel() for weight in weights),
        "quantized_parameters": sum(weight.numel() for weight in quantized),
    }


def forget(device):
    """Gives back what the mode before this one had, so that peaks are each mode's own."""
    torch._dynamo.reset()
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def facts(args, text) -> dict:
    """What was run, and where: the same for every mode."""
    sizes = ("layers", "width", "heads", "seq", "batch", "steps", "lr", "seed", "every", "compile")
    return {
        **{name: getattr(args, name) for name in sizes},
        "ranks": args.world,
        "gradient_format": args.gradient_format,
        "held_out_windows": args.held_out * args.batch,
        "warmup": warmup_steps(args),
        "last_rate": LAST_RATE,
        "clipped_at": CLIPPED_AT,
        **ADAM,
        **text.facts,
        "device": torch.cuda.get_device_name() if args.device == "cuda" else platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "command": report.command(),
    }


def main() -> int:
    args = options()
    if ranks := processes.must_start(args):
        return processes.start(ranks)
    with processes.mesh(args.device) as mesh:
        return run(args, mesh)


def run(args, mesh) -> int:
    text = Text(args, mesh.get_local_rank())
    shared, status = facts(args, text), 0
    with report.json_lines(args.json if text.rank == 0 else None) as write:
        for mode in args.modes:
            forget(args.device)
            try:
                write({"mode": str(mode), **shared, **train(mode, args, text, mesh)})
            except Exception:
                traceback.print_exc()
                status = 1  # the other modes are still trained
    return status


if __name__ == "__main__":
    sys.exit(main())
