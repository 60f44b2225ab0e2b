"""What train_step.py prints: a row a mode."""

import statistics
import sys

import torch.distributed as dist

import report

COLUMNS = [
    ("mode", "mode", "s"),
    ("ms", "ms/step", ".1f"),
    ("optimizer_ms", "optimizer", ".2f"),
    ("host_ms", "host", ".1f"),
    ("tokens_per_s", "tokens/s/rank", ",.0f"),
    ("of_baseline", "of bf16", ".3f"),
    ("peak_gib", "peak GiB", ".3f"),
    ("peak_above_gib", "- bf16", "+.3f"),
    ("shards_gib", "shards GiB", ".3f"),
    ("left_mib", "left MiB", ".1f"),
    ("loss", "loss", ".4f"),
    ("pre_all_gather_us", "pre us", ".0f"),
    ("post_all_gather_us", "post us", ".0f"),
    ("kernels_per_weight", "kernels", ".2f"),
    ("optimizer_kernels_per_weight", "opt. kernels", ".2f"),
]
LEGEND = """\
optimizer: ms of its step. host: ms until a step's work is handed to the device. - bf16: peak above
that of bf16. shards: what a rank stores of the quantized weights, masters apart. left: not given
back when a mode ends. pre, post: host time of FSDP2's hooks for a weight and gather. kernels:
narrowcast's launches for a weight and step, in forward and backward, and in the optimizer."""


def summary(rounds, args) -> list[dict]:
    """A row a mode: medians over the rounds, and ratios to the same round's bf16."""
    rows = []
    world = dist.get_world_size()
    for mode, mine in rounds.items():
        baseline = rounds[mode.baseline]
        row = {"mode": str(mode), "ranks": world, "device": args.device}
        names = "layers", "width", "vocabulary", "seq", "batch", "link", "gradient_format"
        row |= {name: getattr(args, name) for name in names}
        row |= mine[-1]
        for key in ("ms", "optimizer_ms", "host_ms"):
            row[key] = statistics.median(one[key] for one in mine)
        row["fastest_ms"] = min(one["fastest_ms"] for one in mine)
        row["slowest_ms"] = max(one["slowest_ms"] for one in mine)
        row["tokens_per_s"] = 1e3 * args.batch * args.seq / row["ms"]
        pairs = zip(mine, baseline, strict=False)
        row["of_baseline"] = statistics.median(plain["ms"] / one["ms"] for one, plain in pairs)
        row["peak_above_gib"] = None
        if "peak_gib" in row:
            row["peak_gib"] = max(one["peak_gib"] for one in mine)
            row["peak_above_gib"] = row["peak_gib"] - max(one["peak_gib"] for one in baseline)
        rows.append(row)
    return rows


def show(rows, args) -> None:
    print(
        f"\n{args.layers} blocks of width {args.width}, {args.batch} x {args.seq} tokens a rank, "
        f"{rows[0]['ranks']} rank(s) on {rows[0]['device']}, link: {args.link}, "
        f"{args.rounds} x {args.steps} steps\n"
    )
    used = [column for column in COLUMNS if any(row.get(column[0]) is not None for row in rows)]
    print(report.table(rows, used), "", LEGEND, sep="\n")
    for row in rows:
        for key, label in ("kernels", "forward and backward"), ("optimizer_kernels", "optimizer"):
            if row.get(key):
                counts = ", ".join(f"{name} {count}" for name, count in sorted(row[key].items()))
                print(f"{row['mode']}, {row['weights']} weights, kernels in {label}: {counts}")
    sys.stdout.flush()
