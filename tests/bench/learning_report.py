"""The page of what learning.py measured: a table, curves, and what was run.

    python tests/bench/learning_report.py learning.jsonl --output docs/benchmarks

Writes learning.md and learning.png. Several files are shown as one, if they are of the same sizes,
text and machine; their modes or seeds must differ. Only bf16 may be there again: how far its runs
lie apart is what a distance from it is to be held against. Needs matplotlib.
"""

import json
import statistics
import sys
from pathlib import Path

import learning_curves
import report

PLAIN = "bf16"
# What a run may have of its own; all else is the same in all, or they cannot be compared.
OWN = {"mode", "seed", "command", "losses", "held_out", "seconds", "tokens_per_s", "peak_gib"}
OWN |= {"quantized_parameters"}
COLUMNS = [
    ("label", "weights", "s"),
    ("final", "held-out bits per byte", ".4f"),
    ("above", "above bf16", "+.4f"),
    ("training", "training, last steps", ".4f"),
    ("tokens_per_s", "tokens/s", ",.0f"),
    ("of_plain", "of bf16", ".2f"),
    ("peak_gib", "peak GiB", ".2f"),
]


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
        if (row["mode"], row["seed"]) in seen and row["mode"] != PLAIN:
            raise SystemExit(f"{row['mode']} with seed {row['seed']} is there twice")
        seen.add((row["mode"], row["seed"]))
    return sorted(rows, key=lambda row: row["mode"] != PLAIN)


def baseline(row, rows) -> dict | None:
    """The run of bf16 with the same first weights and windows."""
    same = [one for one in rows if one["mode"] == PLAIN and one["seed"] == row["seed"]]
    return same[0] if same else None


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
                "training": statistics.mean(row["losses"][-row["every"] :]),
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
    quantized = max(one["quantized_parameters"] for one in rows)
    how = "each block compiled" if row["compile"] else "eager"
    cuda = f", CUDA {row['cuda']}" if row["cuda"] else ""
    commands = "\n".join(dict.fromkeys([*(one["command"] for one in rows), command]))
    return f"""\
# Learning

A GPT of {row["parameters"]:,} parameters learns the bytes of Python's standard library in \
{row["steps"]:,} steps,
with bf16 weights and with quantized ones. `scaled:FORMAT` multiplies the bytes of weights, inputs \
and
gradients, `nc:FORMAT` the decoded weight ([products](../matmul.md)). One run each{spread(rows)}.

![Loss, and its distance from bf16's](learning.png)

{report.markdown(figures(rows), COLUMNS)}

Held-out text is evaluated as the mode multiplies. "Training" is the mean of the last \
{min(row["every"], row["steps"])} steps. Where
the machine has no matrix unit for a format's products, the operands are decoded and then \
multiplied
([which](../matmul.md#matrix-units)): the same but for the order of sums, and slower. Tokens/s \
are of training,
{how}, with narrowcast's optimizer in every run; peak memory is that of the whole run.

## What was run

| | |
|---|---|
| model | that of `examples/gpt.py`: {row["layers"]} blocks of width {row["width"]}, \
{row["heads"]} heads; a byte is a token |
| quantized | the linear layers of the blocks, {quantized:,} parameters; embedding, head and norms \
are bf16 in every run |
| the same in every run | first weights and windows of text (of a seed), bf16 activations and \
gradients, `nc.FusedAdam` with float32 masters |
| a step | {row["batch"]} windows of {row["seq"]:,} bytes |
| AdamW | betas {row["betas"][0]}, {row["betas"][1]}; eps {row["eps"]:g}; weight decay \
{row["weight_decay"]:g}; gradients clipped at a norm of {row["clipped_at"]:g} |
| learning rate | up to {row["lr"]:g} in {row["warmup"]} steps, then a cosine down to \
{row["lr"] * row["last_rate"]:g} |
| seed | {", ".join(str(seed) for seed in sorted({one["seed"] for one in rows}))} |
| text | the standard library of Python {row["python"]}, as `examples/text.py` reads it: \
{row["training_bytes"]:,} bytes to train on, {row["held_out_bytes"]:,} held out (every tenth \
file); SHA-256 of both `{row["text_sha256"]}` |
| held out | {row["held_out_windows"]} windows of {row["seq"]:,} bytes, the same every \
{row["every"]} steps and in every run |
| machine | {row["device"]}, torch {row["torch"]}{cuda} |

```sh
{commands}
```

The last of these commands has made this page.
"""


def spread(rows) -> str:
    """How far runs of bf16 lie from each other, if there are several."""
    finals = [final(row) for row in rows if row["mode"] == PLAIN]
    if len(finals) < 2:
        return ""
    apart = max(finals) - min(finals)
    return (
        f";\nthose of bf16, {len(finals)} of them, end up to {apart:.4f} bits per byte from each "
        "other (a GPU's attention sums in an order\nthat changes from run to run)"
    )


def main() -> int:
    args = options()
    rows = read(args.files)
    args.output.mkdir(parents=True, exist_ok=True)
    table = figures(rows)
    runs = [(row["label"], row, baseline(row, table)) for row in table]
    learning_curves.draw(runs, args.output / "learning.png")
    (args.output / "learning.md").write_text(page(rows, report.command()), encoding="utf-8")
    print(report.table(table, COLUMNS))
    print(f"{args.output / 'learning.md'}, {args.output / 'learning.png'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
