"""How a GPT learns with quantized weights beside bf16's, on one device or on several ranks.

    python tests/bench/learning.py --json learning.jsonl
    python tests/bench/learning.py --modes bf16,nc:nvfp4,scaled:nvfp4 --seed 1 --json more.jsonl
    python tests/bench/learning.py --ranks 2 --modes bf16,bf16+r --json narrow.jsonl
    python tests/bench/learning.py --minutes 9 --json timed.jsonl  # a rank a GPU
    python tests/bench/learning_report.py learning.jsonl   # the page and the curves

The model and the text are the demo's (examples/gpt.py, examples/text.py). A mode is the kind of the
blocks' linear weights: bf16, nc:FORMAT, or scaled:FORMAT (products of the bytes); with +s behind it
moments are in a state format, with +v values are bfloat16 and AdamW keeps 8 bits more, with +m Muon
updates these matrices, and with +t AdamW is torch's. Norms are bf16 in all modes. Embedding and
head are bf16 too, unless +h puts them in the format. Everything else is the same in every mode:
the first weights, the windows of text and their order, bf16 activations and gradients, and AdamW
with float32 masters. Modes are trained one after another, and each one's line of JSON is written
when it is done. The host waits for the device only where held-out text is evaluated.

Several ranks share each step's windows, under FSDP2 with bf16 products, and gradients are reduced
in float32; with +b in bfloat16, with +r in the format of --gradient-format.

With --minutes each mode trains for the same time, without that of compiling and evaluating, and the
learning rate follows the share of it that is over, after a warm-up of 100 steps. What users run
stands beside what narrowcast has in its place: bf16 mixed precision with torch's AdamW, and few
bits everywhere. The model is larger, always under FSDP2, compiled, and reads all Python sources of
the machine.
"""

import gc
import math
import platform
import statistics
import sys
import traceback

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import learning_options
import learning_schedule
import modes
import narrowcast as nc
import processes
import report
from demo_parts import GPT, VOCABULARY
from learning_text import Text

CLIPPED_AT = 1.0  # norm of all gradients
ADAM = {"eps": 1e-8, "weight_decay": 0.1}
GIB = 2**30


class Training:
    """A mode's model and optimizer."""

    def __init__(self, mode, args, text, mesh):
        self.args, self.text = args, text
        torch.manual_seed(args.seed)
        model = GPT(args.width, args.layers, args.heads)  # on the CPU: equal on every machine
        self.model = model.to(args.device, None if args.sharded else torch.bfloat16)
        mode.convert(self.model)
        if args.sharded:
            modes.shard(self.model, mesh, args.compile, modes.reduce_dtype(mode))
            if mode.gradients == modes.NARROW:
                chosen = args.gradient_format, args.gradient_rounding
                nc.set_reduce_scatter_format(self.model, *chosen)
        elif args.compile:
            for block in self.model.blocks:
                block.compile()
        self.optimizer = modes.optimizer_of(mode, self.model, lr=args.lr, betas=betas(args), **ADAM)
        self.windows, self.losses = text.steps(), []  # in nats, on the device

    def warm_up(self):
        """Compiles what will be compiled, and changes nothing."""
        for _, batch in zip(range(2), self.text.steps(), strict=False):
            self._loss(*batch).backward()
        self.optimizer.zero_grad()

    def step(self, share: float):
        steps = len(self.losses)
        warm = steps / learning_schedule.WARMUP_STEPS if self.args.minutes else None
        for group in self.optimizer.param_groups:
            group["lr"] = learning_schedule.learning_rate(share, self.args.lr, warm)
        loss = self._loss(*next(self.windows))
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), CLIPPED_AT)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.losses.append(loss.detach())

    @torch.no_grad()
    def held_out(self) -> float:
        """Bits per byte of the held-out windows, as the mode multiplies."""
        losses = [self._loss(*batch) for batch in self.text.evaluation()]
        return averaged(losses, self.args).mean().item()

    def _loss(self, tokens, targets):
        """The mean cross entropy of the next byte, in nats."""
        logits = self.model(tokens).float().view(-1, VOCABULARY)
        return F.cross_entropy(logits, targets.flatten())


def betas(args) -> tuple[float, float]:
    return 0.9, args.beta2


def averaged(losses, args) -> torch.Tensor:
    """Of all ranks, in bits per byte, from nats."""
    losses = torch.stack(losses) / math.log(2) / args.world
    dist.all_reduce(losses)
    return losses


def train(mode, args, text, schedule, mesh) -> dict:
    """The whole run of a mode; what was measured."""
    training, clock = Training(mode, args, text, mesh), learning_schedule.Clock(args.device)
    training.warm_up()
    held_out, paces = [(0, 0.0, 0.0)], []  # steps, bits per byte, seconds of training
    processes.wait(args.device)
    clock.start()
    for share in schedule.shares(clock):
        if share is not None:
            training.step(share)
            continue
        seconds, steps = clock.stop(), len(training.losses)
        paces.append((seconds - held_out[-1][2]) / (steps - held_out[-1][0]))
        held_out.append((steps, round(training.held_out(), 5), seconds))
        if text.rank == 0:
            report.progress(
                f"{mode}: {steps} steps in {seconds:.1f} s, of {schedule}; {held_out[-1][1]:.4f} "
                f"bits per byte of held-out text, {1e3 * paces[-1]:.1f} ms a step"
            )
        clock.start()
    return {
        "losses": [round(loss, 5) for loss in averaged(training.losses, args).tolist()],
        "held_out": held_out[1:],
        "seconds": held_out[-1][2],  # of training alone
        # The median over the evaluations' intervals: the first one has what happens but once.
        "tokens_per_s": args.batch * args.seq / statistics.median(paces),
        **memory(training, args.device),
    }


def memory(training, device: str) -> dict:
    """Of the rank that has most: the peak, and what stays from step to step, by nc.summary."""
    found = nc.summary(training.model, training.optimizer)
    kept = found.stored + found.masters + found.state
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else 0
    most = (processes.reduced(one / GIB, device, dist.ReduceOp.MAX) for one in (kept, peak))
    return {
        "kept_gib": next(most),
        "peak_gib": next(most) or None,
        "parameters": sum(math.prod(one.shape) for one in found.parameters),
        "quantized_parameters": sum(math.prod(one.shape) for one in found.quantized),
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
    sizes = ("layers", "width", "heads", "seq", "batch", "lr", "seed", "compile")
    return {
        **{name: getattr(args, name) for name in (*sizes, "steps", "every", "minutes")},
        "ranks": args.world,
        "gradient_format": args.gradient_format,
        "held_out_windows": args.held_out * args.batch,
        "warmup": learning_schedule.WARMUP_STEPS if args.minutes else learning_schedule.WARMUP,
        "last_rate": learning_schedule.LAST_RATE,
        "clipped_at": CLIPPED_AT,
        "betas": betas(args),
        **ADAM,
        **text.facts,
        "device": torch.cuda.get_device_name() if args.device == "cuda" else platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "command": report.command(),
    }


def main() -> int:
    args = learning_options.options(__doc__)
    if ranks := processes.must_start(args):
        return processes.start(ranks)
    with processes.mesh(args.device) as mesh:
        return run(args, mesh)


def run(args, mesh) -> int:
    text = Text(args, mesh.get_local_rank())
    if text.rank == 0:
        sizes = (text.facts[f"{part}_bytes"] / 1e6 for part in ("training", "held_out"))
        report.progress("{:.1f} MB of text to train on, {:.1f} MB held out".format(*sizes))
    if args.minutes is None:
        schedule = learning_schedule.BySteps(args.steps, args.every)
    else:
        schedule = learning_schedule.ByTime(args.minutes, args.world)
    shared, status = facts(args, text), 0
    with report.json_lines(args.json if text.rank == 0 else None) as write:
        for mode in args.modes:
            forget(args.device)
            try:
                write({"mode": str(mode), **shared, **train(mode, args, text, schedule, mesh)})
            except Exception:
                traceback.print_exc()
                status = 1  # the other modes are still trained
    return status


if __name__ == "__main__":
    sys.exit(main())
