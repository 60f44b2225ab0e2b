"""Training steps under FSDP2 with quantized weights beside bf16's, in one run.

    python tests/bench/train_step.py                                # a rank a GPU, or one
    torchrun --nproc-per-node 8 tests/bench/train_step.py --modes bf16,nc:mxfp8_e4m3,nc:mxfp8_e4m3+e
    python tests/bench/train_step.py --formats all --json steps.jsonl

A mode is the kind of the blocks' linear weights: bf16, nc:FORMAT, scaled:FORMAT (products of the
bytes), or tensorwise (torchao's float8, where torchao is). Each block is compiled; +e leaves that
out, and is compared with eager bf16. Gradients travel in float32; with +b in bfloat16, with +r in
the format of --gradient-format. With --link host all that ranks send goes through the host's
memory, about as fast as between machines, and with --link sockets slower than that.

All modes run in turn, several times over, so that a machine's drift falls on all of them; each
makes its model, runs untimed steps, then timed ones, and drops it. Of small layers the host sets
the pace, which drifts faster: with --alternate all modes have their models at once and take turns
step by step, and nothing is told of memory. --burst 10 lets the host run ahead for so many steps,
as in loops that do not read each loss.

Peak memory is that of the timed steps. With fp32 masters in both, a format's may exceed bf16's by
no more than what its shards store.
"""

import collections
import statistics
import sys
import time
import traceback

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

import llama
import memory
import modes
import probes
import processes
import report
import step_report

GIB = 2**30


def options():
    parser = report.parser(__doc__)
    add = parser.add_argument
    add("--modes", default="bf16,nc:mxfp8_e4m3,nc:nvfp4", help="default: %(default)s")
    add("--formats", help="more modes: all, or names of formats; ends in +e for eager ones")
    small = "; fewer on the CPU"
    add("--layers", type=int, help="default: 8" + small)
    add("--width", type=int, help="default: 4096, Llama-3-8B's" + small)
    add("--vocabulary", type=int, help="default: 32000" + small)
    add("--seq", type=int, help="tokens in a sequence; default: 4096" + small)
    add("--batch", type=int, default=2, help="sequences a rank and step")
    add("--steps", type=int, default=8, help="timed in each round")
    add("--burst", type=int, default=1, help="steps for each timed one, with no wait between")
    add("--warmup", type=int, default=4, help="untimed, before those")
    add("--rounds", type=int, default=3, help="of all modes")
    add("--alternate", action="store_true", help="all modes at once, their steps in turn")
    form = "of gradients in modes with +r; default: %(default)s"
    add("--gradient-format", default="mxfp8_e4m3", metavar="FORMAT", help=form)
    processes.add_link_option(parser)
    processes.add_options(parser)
    report.add_options(parser)
    chosen = parser.parse_args()
    sizes = {"layers": (8, 2), "width": (4096, 256), "vocabulary": (32000, 512), "seq": (4096, 64)}
    for name, (on_gpu, on_cpu) in sizes.items():
        if getattr(chosen, name) is None:
            setattr(chosen, name, on_gpu if chosen.device == "cuda" else on_cpu)
    if min(chosen.steps, chosen.burst, chosen.warmup, chosen.rounds) < 1:
        parser.error("--steps, --burst, --warmup and --rounds are at least 1")
    try:
        chosen.modes = modes.selection(chosen.modes, chosen.formats)
    except ValueError as error:
        parser.error(str(error))
    return chosen


class Clock:
    """Moments on a device: CUDA events, or the time itself."""

    def __init__(self, device):
        self.device = device

    def now(self):
        if self.device == "cpu":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def wait(self):
        processes.wait(self.device)

    def milliseconds(self, begin, end):
        return 1e3 * (end - begin) if self.device == "cpu" else begin.elapsed_time(end)


class Training:
    """A mode's model, optimizer and batch."""

    def __init__(self, mode, args, mesh):
        self.model, self.optimizer = modes.build(mode, args, mesh)
        shape = (args.batch, args.seq, args.vocabulary)
        self.batch = llama.batch(*shape, args.device, mesh.get_local_rank())
        self.clock, self.loss = Clock(args.device), None

    def passes(self):
        self.loss = self.model(*self.batch)
        self.loss.backward()

    def update(self):
        self.optimizer.step()
        self.optimizer.zero_grad()

    def step(self):
        self.passes()
        self.update()

    def timed_steps(self, count: int) -> dict[str, float]:
        """Milliseconds of a step, of the last one's optimizer, and until the host is through: of
        some behind which it waits for the device.
        """
        self.clock.wait()
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(count - 1):
            self.step()
        self.passes()
        before = self.clock.now()
        self.update()
        after = self.clock.now()
        handed_over = time.perf_counter()
        self.clock.wait()
        return {
            "ms": 1e3 * (time.perf_counter() - begin) / count,
            "optimizer_ms": self.clock.milliseconds(before, after),
            "host_ms": 1e3 * (handed_over - begin) / count,
        }

    def warmed_up(self, steps: int) -> "Training":
        for _ in range(steps):
            self.step()
        return self


def run(mode, args, mesh, looks: bool) -> dict:
    """One round of a mode: what was measured. `looks`: also what takes steps of its own."""
    training = Training(mode, args, mesh).warmed_up(args.warmup)
    if args.device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    steps = [training.timed_steps(args.burst) for _ in range(args.steps)]
    row = row_of(training, steps, args, mesh)
    if args.device == "cuda":
        peak = torch.cuda.max_memory_allocated() / GIB
        row["peak_gib"] = processes.reduced(peak, args.device, ReduceOp.MAX)
    if looks:
        row |= look(training, mode, args.device)
    return row


def row_of(training, steps, args, mesh) -> dict:
    """What timed steps have told, and what a rank stores."""
    row = {key: statistics.median(step[key] for step in steps) for key in steps[0]}
    row["fastest_ms"], row["slowest_ms"] = (f(step["ms"] for step in steps) for f in (min, max))
    row["loss"] = processes.reduced(training.loss.item(), args.device, ReduceOp.SUM) / mesh.size()
    shards = memory.shard_bytes(training.model) / GIB
    row["shards_gib"] = processes.reduced(shards, args.device, ReduceOp.MAX)
    return row


def look(training, mode, device) -> dict:
    """Host time of the hooks and kernels launched, of a mode that has them."""
    found = {}

    def step():
        training.step()
        training.clock.wait()  # or the host would wait within a hook, where launches queue

    if mode.format:
        microseconds = probes.hook_microseconds(step)
        found = {name.removeprefix("fsdp_") + "_us": us for name, us in microseconds.items()}
    if device == "cuda":
        passes, update = probes.kernels(training.passes), probes.kernels(training.update)
        found["all_kernels"] = passes.total() + update.total()
        if weights := len(memory.quantized_weights(training.model)):
            found["weights"] = weights
            for prefix, counter in ("", probes.own(passes)), ("optimizer_", probes.own(update)):
                found[prefix + "kernels_per_weight"] = counter.total() / weights
                found[prefix + "kernels"] = dict(counter)
    return found


def measure(args, mesh, rounds) -> None:
    """Runs all modes in turn; appends each mode's rounds to `rounds`."""
    for number in range(args.rounds):
        for mode in args.modes:
            begin, before = time.perf_counter(), memory.held(args.device)
            row = run(mode, args, mesh, looks=number == args.rounds - 1)
            row["left_mib"] = drop(args.device, before)
            rounds[mode].append(row)
            if mesh.get_local_rank() == 0:
                seconds = time.perf_counter() - begin
                report.progress(
                    f"round {number + 1} of {args.rounds}, {mode}: {row['ms']:.1f} ms a step "
                    f"({row['fastest_ms']:.1f} to {row['slowest_ms']:.1f}); {seconds:.0f} s in all"
                )


def alternate(args, mesh, rounds) -> None:
    """As measure(), with every step a round."""
    trainings = {mode: Training(mode, args, mesh).warmed_up(args.warmup) for mode in args.modes}
    for _ in range(args.rounds * args.steps):
        for mode, training in trainings.items():
            rounds[mode].append(row_of(training, [training.timed_steps(args.burst)], args, mesh))


def drop(device, before) -> float:
    """Gives back what a mode had; MiB that are still held above what was held before it."""
    torch._dynamo.reset()
    left = memory.settled(device, before) - before
    if device == "cuda":
        torch.cuda.empty_cache()
    return left / 2**20


def main() -> int:
    args = options()
    processes.use_link(args)
    if ranks := processes.must_start(args):
        return processes.start(ranks)
    with processes.mesh(args.device) as mesh:
        rounds, status = collections.defaultdict(list), 0
        try:
            (alternate if args.alternate else measure)(args, mesh, rounds)
        except Exception:
            traceback.print_exc()
            status = 1  # the table of what has been measured still comes
        if mesh.get_local_rank() == 0 and rounds:
            rows = step_report.summary(rounds, args)
            step_report.show(rows, args)
            report.write_json(rows, args.json)
    return status


if __name__ == "__main__":
    sys.exit(main())
