"""The page of what learning.py measured: a table, curves, and what was run.

    python tests/bench/learning_report.py learning.jsonl --output docs/benchmarks

Writes learning.md and learning.png. Several files are shown as one, if they are of the same sizes,
text and machine; their modes or seeds must differ. Only the first mode, with which the others are
compared, may be there again: how far its runs lie apart is what a distance from it is to be held
against. Needs matplotlib.
"""

import json
import statistics
import sys
from pathlib import Path

import learning_curves
import report

LAST_STEPS = 100  # of a timed run
TEXTS = {
    "library": "Python's standard library",
    "machine": "the Python sources of the machine",
    "files": "files of the machine",
}
MEANINGS = {
    "+t": "torch's fused AdamW (else narrowcast's)",
    "+s": "moments in eight bits",
    "+v": "values in bfloat16, and 8 bits more in the optimizer",
    "+h": "embedding and head in the format, too",
    "+m": "Muon for the blocks' matrices",
    "+b": "gradients sent in bfloat16 (else float32)",
    "+r": "gradients sent in {gradient_format} (else float32)",
}
# What a run may have of its own; all else is the same in all, or they cannot be compared.
OWN = {"mode", "seed", "command", "losses", "held_out", "seconds", "tokens_per_s", "peak_gib"}
OWN |= {"kept_gib", "quantized_parameters"}


def options():
    parser = report.parser(__doc__)
    parser.add_argument("files", nargs="+", type=Path, help="what learning.py --json has written")
    parser.add_argument("--output", type=Path, default=Path("learning"), help="a folder")
    return parser.parse_args()


def read(files) -> list[dict]:
    """The rows of all files. SystemExit with a sentence if they cannot be compared."""
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    if not rows:
        raise SystemExit(f"{', '.join(map(str, files))}: no run is in there")
    first, seen = rows[0], set()
    for row in rows:
        for key in (first.keys() | row.keys()) - OWN:
            if row.get(key) != first.get(key):
                raise SystemExit(
                    f"{row['mode']}: {key} is {row.get(key)}, and {first.get(key)} of "
                    f"{first['mode']}: these runs cannot be compared"
                )
        if (row["mode"], row["seed"]) in seen and row["mode"] != first["mode"]:
            raise SystemExit(f"{row['mode']} with seed {row['seed']} is there twice")
        seen.add((row["mode"], row["seed"]))
    return sorted(rows, key=lambda row: row["mode"] != first["mode"])


def baseline(row, rows) -> dict | None:
    """The run of the first mode with the same first weights and windows."""
    same = [one for one in repeated(rows) if one["seed"] == row["seed"]]
    return same[0] if same else None


def repeated(rows) -> list[dict]:
    """The runs of the mode that others are compared with."""
    return [row for row in rows if row["mode"] == rows[0]["mode"]]


def columns(rows) -> list[tuple]:
    plain, is_timed = rows[0]["mode"], rows[0]["minutes"] is not None
    millions = [("steps_taken", "steps", ",d"), ("millions", "million tokens", ",.1f")]
    return [
        ("label", "weights", "s"),
        *(millions if is_timed else []),
        ("final", "held-out bits per byte", ".4f"),
        ("above", f"above {plain}", "+.4f"),
        ("training", "training, last steps", ".4f"),
        ("tokens_per_s", "tokens/s", ",.0f"),
        ("of_plain", f"of {plain}", ".2f"),
        ("kept_gib", "weights and state, GiB", ".2f"),
        ("peak_gib", "peak GiB", ".2f"),
    ]


def figures(rows) -> list[dict]:
    """The table's rows."""
    seeds = {row["seed"] for row in rows}
    found, labels = [], set()
    for row in rows:
        plain = baseline(row, rows)
        compared = plain is not None and plain is not row
        label = row["mode"] + (f", seed {row['seed']}" if len(seeds) > 1 else "")
        label += ", again" * (label in labels)
        labels.add(label)
        found.append(
            row
            | {
                "label": label,
                "final": final(row),
                "above": final(row) - final(plain) if compared else None,
                "steps_taken": len(row["losses"]),
                "millions": len(row["losses"]) * row["batch"] * row["seq"] / 1e6,
                "training": statistics.mean(row["losses"][-(row["every"] or LAST_STEPS) :]),
                "of_plain": row["tokens_per_s"] / plain["tokens_per_s"] if compared else None,
            }
        )
    return found


def final(row) -> float:
    """Bits per byte of held-out text after the last step."""
    return row["held_out"][-1][1]


def page(rows, command) -> str:
    """The whole page. `command`: that which makes it."""
    row = rows[0]
    is_timed = row["minutes"] is not None
    linear = [one for one in rows if "+h" not in one["mode"]] or rows
    quantized = max(one["quantized_parameters"] for one in linear)
    how = "each block compiled" if row["compile"] else "eager"
    cuda = f", CUDA {row['cuda']}" if row["cuda"] else ""
    commands = "\n".join(dict.fromkeys([*(one["command"] for one in rows), command]))
    warmup = f"{row['warmup']:g} steps"
    if row["warmup"] < 1:
        warmup = f"{row['warmup']:.0%} of the {'time' if is_timed else 'steps'}"
    each = f"{row['minutes']:g} minutes" if is_timed else f"{row['steps']:,} steps"
    ranks = f"{row['ranks']} × " if row["ranks"] > 1 else ""
    return f"""\
# Learning

A GPT of {row["parameters"]:,} parameters learns the bytes of {TEXTS[row["text"]]} in \
{each}{" of training for each mode" * is_timed},
with bf16 weights and with quantized ones. `scaled:FORMAT` multiplies the bytes of weights, inputs \
and
gradients, `nc:FORMAT` the decoded weight ([products](../matmul.md)).{suffixes(rows)} One run \
each{spread(rows)}.

![Loss, and its distance from {row["mode"]}'s](learning.png)

{report.markdown(figures(rows), columns(rows))}

Held-out text is evaluated as the mode multiplies. "Training" is the mean of the last \
{min(row["every"] or LAST_STEPS, len(row["losses"])):,} steps. Where
the machine has no matrix unit for a format's products, the operands are decoded and then \
multiplied
([which](../matmul.md#matrix-units)): the same but for the order of sums, and slower. Tokens/s \
are of training,
{how}, without evaluations; "weights and state" is what a rank keeps from step to step, by \
`nc.summary`,
and the peak that of the whole run.

## What was run

| | |
|---|---|
| model | that of `examples/gpt.py`: {row["layers"]} blocks of width {row["width"]}, \
{row["heads"]} heads; a byte is a token |
| quantized | the linear layers of the blocks, {quantized:,} parameters; embedding, head and norms \
are plain in every run without +h |
| the same in every run | first weights and windows of text (of a seed), products of bf16 \
activations, float32 masters |
| a step | {row["batch"]} windows of {row["seq"]:,} bytes |
| AdamW | betas {row["betas"][0]}, {row["betas"][1]}; eps {row["eps"]:g}; weight decay \
{row["weight_decay"]:g}; gradients clipped at a norm of {row["clipped_at"]:g} |
| learning rate | up to {row["lr"]:g} in the first {warmup}, then a cosine down to \
{row["lr"] * row["last_rate"]:g} |
| seed | {", ".join(str(seed) for seed in sorted({one["seed"] for one in rows}))} |
| text | {TEXTS[row["text"]]}, of Python {row["python"]}: {row["training_bytes"]:,} bytes to train \
on, {row["held_out_bytes"]:,} of other files held out; SHA-256 of both `{row["text_sha256"]}` |
| held out | {row["held_out_windows"]} windows of {row["seq"]:,} bytes, the same at every \
evaluation and in every run |
| machine | {ranks}{row["device"]}, torch {row["torch"]}{cuda} |

```sh
{commands}
```

The last of these commands has made this page.
"""


def suffixes(rows) -> str:
    """What those mean that stand behind a mode of these."""
    used = [end for end in MEANINGS if any(end in row["mode"] for row in rows)]
    told = ", ".join(f"`{end}` {MEANINGS[end]}" for end in used)
    return f"\nBehind it: {told.format(**rows[0])}." if used else ""


def spread(rows) -> str:
    """How far runs of the first mode lie from each other, if there are several."""
    finals = [final(row) for row in repeated(rows)]
    if len(finals) < 2:
        return ""
    apart = max(finals) - min(finals)
    return (
        f";\nthose of {rows[0]['mode']}, {len(finals)} of them, end up to {apart:.4f} bits per "
        "byte from each other (a GPU's attention sums in an order\nthat changes from run to run)"
    )


def main() -> int:
    args = options()
    rows = read(args.files)
    args.output.mkdir(parents=True, exist_ok=True)
    table = figures(rows)
    runs = [(row["label"], row, baseline(row, table)) for row in table]
    units = ("million tokens", "minutes") if rows[0]["minutes"] else ("step",)
    learning_curves.draw(runs, units, args.output / "learning.png")
    (args.output / "learning.md").write_text(page(rows, report.command()), encoding="utf-8")
    print(report.table(table, columns(rows)))
    print(f"{args.output / 'learning.md'}, {args.output / 'learning.png'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
