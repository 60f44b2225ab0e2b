"""A model, not a measurement: what a step of train_step.py costs on more GPUs and other links.

    python tests/bench/train_step.py --modes bf16,bf16+r,scaled:fp8_e4m3+r --json fast.jsonl
    python tests/bench/train_step.py --modes bf16,bf16+r --link host --json host.jsonl
    python tests/bench/link_model.py fast.jsonl host.jsonl --plot model.png

Rows over the fast link give each mode's compute time: the time with which the model takes as long
over that link as was measured. Of each slow link two speeds are fitted: that of rings (gathers,
plain reductions) from the rows without narrow gradients, then that of all-to-alls from the rows
with them. Where a link has rows of one kind alone, one speed is fitted for both. The model's
tokens/s are shown beside the measured ones. Then come other speeds and numbers of GPUs: a speed is
that of rings, of which all-to-alls get the share that they had over the measured slow link of the
nearest speed. The batch of a rank stays, the optimizer's time shrinks as shards do. Points at more
GPUs than were measured, or at speeds outside of the measured links, are marked as extrapolated.

The schedule is FSDP2's, with fully_shard on each block and on the whole, and one wire that carries
one collective after another, because all are of one NCCL communicator. Not in the model: compute
that slows down while NCCL runs, copies beside the wire, stragglers, congestion, a host that lags.
"""

import itertools
import math
import operator
from dataclasses import dataclass, replace
from pathlib import Path

import modes
import narrowcast as nc
import report

SHAPE = "layers", "width", "seq", "batch", "vocabulary", "ranks"
CHECK = [
    *(("mode", "mode", "s"), ("link", "link", "s"), ("layers", "layers", "d")),
    *(("gb_per_s", "GB/s, rings", ".1f"), ("all_to_all_gb_per_s", "all-to-alls", ".1f")),
    *(("measured", "tokens/s/rank, measured", ",.0f"), ("model", "model", ",.0f")),
    ("ratio", "ratio", ".3f"),
]
SPEEDS = [0.1 * 1.005**i for i in range(1700)]  # GB/s that are tried, to 480


@dataclass(frozen=True)
class Link:
    """Of `node` GPUs each, that reach the other nodes by a card each of `gb_per_s`, in an
    all-to-all of `all_to_all_gb_per_s`. None: the same.
    """

    gb_per_s: float
    ranks: int
    hop_ms: float = 0.0
    node: int = 1
    all_to_all_gb_per_s: float | None = None

    def ms(self, size: float, all_to_all=False) -> float:
        """Of a collective of `size` bytes in all. NCCL's rings enter and leave a node once, on the
        cards of all its GPUs, while each rank of an all-to-all sends its parts itself. Both take a
        hop for each other node (NCCL's src/graph/tuning.cc; nccl-tests' PERFORMANCE.md). What
        stays within a node is not waited for.
        """
        if self.ranks <= self.node:
            return 0.0
        sent = self.ranks - self.node if all_to_all else (self.ranks - 1) / self.node
        hops = math.ceil(self.ranks / self.node) - 1
        speed = (all_to_all and self.all_to_all_gb_per_s) or self.gb_per_s
        return hops * self.hop_ms + size * sent / self.ranks / speed / 1e6


def wire_bytes(name: str) -> float:
    """Of an element of a format. Of those that gradients may have, parts and gathers are alike."""
    return nc.format(name).wire_bits_per_element / 8


def is_narrow(row) -> bool:
    """Whether its gradients travel in a format, so by all-to-alls."""
    return modes.parse(row["mode"]).gradients == modes.NARROW


def step_ms(row, compute: float, link: Link) -> float:
    """A step of the row's mode, of which `compute` ms are forward and backward."""
    mode = modes.parse(row["mode"])
    block, root = 13 * row["width"] ** 2, 2 * row["width"] * row["vocabulary"]  # parameters
    narrow = is_narrow(row)
    gathered = wire_bytes(mode.format) if mode.format else 2  # an element
    gathered = 1 if mode.weights == modes.TORCHAO else gathered
    reduced = 2 if mode.gradients == modes.BF16_GRADIENTS else 4
    reduced = wire_bytes(row["gradient_format"]) if narrow else reduced
    gather = link.ms(block * gathered)
    reduce, root_reduce = (link.ms(size * reduced, narrow) for size in (block, root))

    # A third is forward. Of that a block has what its operations are of all, attention's included.
    work = block + row["seq"] * row["width"], root / 2
    forward, head = (compute / 3 * part / (row["layers"] * work[0] + work[1]) for part in work)

    wire = now = link.ms(root * 2)  # when the wire is free, and when compute is
    starts = []
    for i in range(row["layers"]):  # a gather waits until the weights of two before are copied out
        wire = max(wire, starts[i - 2] if i >= 2 else 0) + gather
        starts.append(max(now, wire))
        now = starts[-1] + forward
    now += head
    wire = there = max(wire, now) + gather  # the root's backward prefetches the last block
    now, sums = now + 2 * head, 0.0
    for i in reversed(range(row["layers"])):
        now = max(now, there)
        if i > 0:
            wire = there = max(wire, now) + gather
        now = max(now + 2 * forward, sums)  # the buffer of the reduction before must be free
        wire = sums = max(wire, now) + reduce
    return max(wire, now) + root_reduce + row["optimizer_ms"]


def tokens_per_s(row, ms: float) -> float:
    return 1e3 * row["batch"] * row["seq"] / ms


def key(row):
    return (row["mode"], *(row[name] for name in SHAPE))


def compute_ms(row, link: Link) -> float:
    """Of forward and backward, from a row over the fast link: what makes the model right there."""
    low, high = 0.0, row["ms"]
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if step_ms(row, middle, link) < row["ms"] else (low, middle)
    return low


def ratios(rows, times, link: Link) -> list[float]:
    """The model's tokens/s over the measured ones."""
    return [row["ms"] / step_ms(row, times[key(row)], link) for row in rows]


def fit(rows, times, hop_ms) -> Link:
    """The speeds of a link that fit its rows best."""
    narrow = [row for row in rows if is_narrow(row)]
    plain = [row for row in rows if not is_narrow(row)]

    def best(mine, links):
        return min(links, key=lambda one: sum(math.log(r) ** 2 for r in ratios(mine, times, one)))

    (ranks,) = {row["ranks"] for row in rows}
    link = best(plain or narrow, [Link(speed, ranks, hop_ms) for speed in SPEEDS])
    if narrow and plain:
        link = best(narrow, [replace(link, all_to_all_gb_per_s=speed) for speed in SPEEDS])
    return link


def check(rows, times, hop_ms) -> list[dict]:
    """Model against measurement over slow links, each at the speeds that fit its rows best."""
    shown = []
    where = operator.itemgetter("link", "ranks")
    for _, mine in itertools.groupby(sorted(rows, key=where), key=where):
        mine = list(mine)
        link = fit(mine, times, hop_ms)
        speeds = {name: getattr(link, name) for name in ("gb_per_s", "all_to_all_gb_per_s")}
        for row, ratio in zip(mine, ratios(mine, times, link), strict=True):
            measured = tokens_per_s(row, row["ms"])
            about = {column: row[column] for column in ("mode", "link", *SHAPE)}
            found = {"measured": measured, "model": measured * ratio, "ratio": ratio}
            shown.append({**about, **speeds, **found})
    return shown


def all_to_all_share(gb_per_s, checked) -> float:
    """Of the speed of rings: as over the measured slow link that is nearest; 1 if none tells."""
    told = [row for row in checked if row["all_to_all_gb_per_s"]]
    if not told:
        return 1.0
    near = min(told, key=lambda row: abs(math.log(row["gb_per_s"] / gb_per_s)))
    return near["all_to_all_gb_per_s"] / near["gb_per_s"]


def predict(rows, times, checked, args) -> list[dict]:
    """A row a mode, speed and number of GPUs. `checked`: what check() has found."""
    shown, measured = [], rows[0]["ranks"]
    speeds = [args.fast, *(row["gb_per_s"] for row in checked)]
    for gbit, gpus in itertools.product(args.gbit, sorted({measured, *args.gpus})):
        share = all_to_all_share(gbit / 8, checked)
        link = Link(gbit / 8, gpus, args.hop / 1e3, args.node, share * gbit / 8)
        known = gpus == measured and min(speeds) <= gbit / 8 <= max(speeds) and args.node == 1
        about = {"gbit_per_s": gbit, "all_to_all_share": share, "gpus": gpus}
        about["extrapolated"] = not known
        ms = {}
        for row in rows:
            there = row | {"optimizer_ms": row["optimizer_ms"] * measured / gpus}
            ms[row["mode"]] = step_ms(there, times[key(row)], link)
        for mode, mine in ms.items():
            tokens = tokens_per_s(rows[0], mine)
            baseline = ms[str(modes.parse(mode).baseline)]
            found = {"ms": mine, "tokens_per_s": tokens, "of_baseline": baseline / mine}
            shown.append({"mode": mode, **about, **found})
    return shown


def table(predicted) -> str:
    """A line a speed and mode, a column a number of GPUs."""
    lines = {}
    for row in predicted:
        line = lines.setdefault((row["gbit_per_s"], row["mode"]), {"mode": row["mode"]})
        line |= {"speed": row["gbit_per_s"], "share": row["all_to_all_share"]}
        mark = "~" * row["extrapolated"]
        line[row["gpus"]] = f"{mark}{row['tokens_per_s']:,.0f} ({row['of_baseline']:.2f})"
    gpus = [(count, f"{count} GPUs", "s") for count in dict.fromkeys(r["gpus"] for r in predicted)]
    speeds = ("speed", "Gb/s a GPU", "g"), ("share", "all-to-alls", ".2f")
    columns = [("mode", "mode", "s"), *speeds, *gpus]
    legend = (
        "tokens/s/rank by the model (of bf16, reduced in float32). ~: extrapolated. all-to-alls: "
        "their speed, of that of rings"
    )
    return report.table(list(lines.values()), columns) + "\n\n" + legend


def options():
    parser = report.parser(__doc__)
    add = parser.add_argument
    numbers = {"type": lambda text: [int(part) for part in text.split(",")]}
    add("files", nargs="+", type=Path, metavar="FILE", help="that train_step.py --json has written")
    add("--fast", type=float, default=300, help="GB/s a GPU of the fast link; default: %(default)g")
    add("--hop", type=float, default=20, help="microseconds to another node; default: %(default)g")
    add("--node", type=int, default=1, help="GPUs of a node; default: 1, as the slow links have it")
    add("--gbit", **numbers, default=[10, 50, 100, 400, 800], help="speeds, Gb/s that a GPU gets")
    add("--gpus", **numbers, default=[8, 16, 32, 64, 128, 256, 512, 1024])
    add("--plot", metavar="FILE", help="also draw the curves; needs matplotlib")
    report.add_options(parser)
    args = parser.parse_args()
    args.rows = [row for file in args.files for row in report.read_json(file)]
    if not any(row["link"] == "fast" for row in args.rows):
        parser.error("no row is of --link fast: compute times come from those")
    return args


def main():
    args = options()
    fast = {key(row): row for row in args.rows if row["link"] == "fast"}
    slow = [row for row in args.rows if row["link"] != "fast"]
    hop_ms = args.hop / 1e3
    times = {k: compute_ms(r, Link(args.fast, r["ranks"], hop_ms)) for k, r in fast.items()}
    for row in slow:
        if key(row) not in times:
            report.progress(f"{row['mode']} over {row['link']}: not measured over the fast link")
    checked = check([row for row in slow if key(row) in times], times, hop_ms)
    if checked:
        print(report.table(checked, CHECK), end="\n\n")
    shape = next(iter(fast))[1:]  # that of the first row is what larger machines train
    predicted = predict([r for k, r in fast.items() if k[1:] == shape], times, checked, args)
    print(table(predicted))
    report.write_json([*checked, *predicted], args.json)
    if args.plot:
        import link_model_picture

        link_model_picture.draw(predicted, args.plot)


if __name__ == "__main__":
    main()
