"""Draws the plots of docs/benchmarks/ from measured.json, the figures that its page has as tables.

    python tools/draw_benchmarks.py [FOLDER]

Needs matplotlib. The same version of it draws the same files each time.
"""

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

PLOTS = Path(__file__).parents[1] / "docs" / "benchmarks"
EAGER, COMPILED, PLAIN = "#ccbb44", "#4477aa", "#bbbbbb"


def shares(axes, names, rows):
    """Bars from 1, which is bf16: of a row the eager one above, the compiled one below."""
    for key, color, offset in (("eager", EAGER, -0.2), ("compiled", COMPILED, 0.2)):
        shown = [(i, row) for i, row in enumerate(rows) if key in row]
        places = [i + offset * ("eager" in row) for i, row in shown]
        gains = [row[key] - 1 for _, row in shown]
        bars = axes.barh(places, gains, height=0.38, left=1, color=color, label=key)
        axes.bar_label(bars, [f"{row[key]:.3f}" for _, row in shown], padding=2, fontsize=7)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.margins(y=0.02)


def speed(measured):
    """Tokens/s, as shares of bf16's in the same mode and run."""
    figure, (scaled, decoded) = plt.subplots(
        *(2, 1), figsize=(8, 8.5), height_ratios=(6, 16), layout="constrained"
    )
    rows = measured["scaled"]
    shares(scaled, [row["weights"] for row in rows], rows)
    scaled.set(title="Scaled products, and two formats decoded: four H200", xlim=(1, 1.4))
    rows = measured["dequantized"]
    shares(decoded, [row["format"] for row in rows], rows)
    decoded.set(title="Decoded products: four H100", xlim=(1, 1.04))
    decoded.set(xlabel="tokens/s, as a share of those with bf16 weights")
    decoded.legend(loc="lower right")
    return figure


def optimizer(measured):
    """Milliseconds of a step that also writes the bytes, with its share of a copy's rate."""
    rows, adamw = measured["optimizer"], measured["adamw_fp32_ms"]
    names = [row["format"] + " (two passes)" * (row["passes"] == 2) for row in rows]
    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    bars = axes.barh(names, [row["step_ms"] for row in rows], color=COMPILED)
    labels = [f"{row['step_ms']:.2f} ms, {row['step_of_copy']} % of copy" for row in rows]
    axes.bar_label(bars, labels, padding=3, fontsize=8)
    axes.barh("torch's AdamW, fp32, no bytes", adamw, color=PLAIN)
    axes.bar_label(axes.containers[-1], [f"{adamw:.2f} ms"], padding=3, fontsize=8)
    figure.suptitle("AdamW and the bytes of both usages in one step: one H200, 872M parameters")
    axes.set(xlabel="ms a step", xlim=(0, 9))
    axes.invert_yaxis()
    axes.margins(y=0.02)
    return figure


def peak_memory(measured):
    """GiB a rank: the peak of a step beside that of bf16, and what its shards store."""
    rows = measured["dequantized"]
    names = [row["format"] for row in rows]
    figure, both = plt.subplots(1, 2, figsize=(9, 4.6), sharey=True, layout="constrained")
    for axes, key, color in zip(both, ("peak_gib", "shards_gib"), (COMPILED, EAGER), strict=True):
        bars = axes.barh(names, [row[key] for row in rows], color=color)
        axes.bar_label(bars, fmt="%.2f", padding=3, fontsize=8)
        axes.set(xlabel="GiB a rank", xlim=(-0.25, 0.8))
        axes.axvline(0, color="black", linewidth=0.8)
    both[0].set_title("peak of a step, above bf16's")
    both[1].set_title("stored beside the masters")
    both[0].invert_yaxis()
    both[0].margins(y=0.02)
    return figure


def network(measured):
    """Tokens/s over each link, as shares of bf16's reduced in float32 over the same link."""
    links = {"fast": "NVLink", "host": "through host memory", "sockets": "by sockets"}
    kinds = {"": "float32", "+b": "bfloat16", "+r": "mxfp8_e4m3"}
    modes = list(dict.fromkeys(row["mode"] for row in measured["network"]))
    plain = [mode.removesuffix("+b").removesuffix("+r") for mode in modes]
    sent = [kinds[mode.removeprefix(name)] for mode, name in zip(modes, plain, strict=True)]
    names = [f"{name}, gradients in {kind}" for name, kind in zip(plain, sent, strict=True)]
    figure, panels = plt.subplots(1, 3, figsize=(11, 3.6), sharey=True, layout="constrained")
    for axes, (link, title) in zip(panels, links.items(), strict=True):
        rows = [row for row in measured["network"] if row["link"] == link]
        places = [modes.index(row["mode"]) for row in rows]
        colors = [PLAIN if row["mode"].startswith("bf16") else COMPILED for row in rows]
        bars = axes.barh(places, [row["of_bf16"] for row in rows], color=colors)
        labels = [f"{row['of_bf16']:.2f} ({row['tokens_per_s']:,})" for row in rows]
        axes.bar_label(bars, labels, padding=3, fontsize=8)
        axes.set(title=title, xlim=(0, 4.2))
        axes.axvline(1, color="black", linewidth=0.8)
    panels[0].set_yticks(range(len(names)), names)
    panels[0].invert_yaxis()
    panels[1].set_xlabel("share of bf16's tokens/s, gradients in float32 (tokens/s a GPU)")
    figure.suptitle("Two H200 of one host, six blocks")
    return figure


def main():
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else PLOTS
    measured = json.loads((PLOTS / "measured.json").read_text(encoding="utf-8"))
    plt.rcParams["svg.hashsalt"] = "narrowcast"  # the same file each time
    plt.rcParams["svg.fonttype"] = "none"
    for draw in (speed, optimizer, peak_memory, network):
        figure = draw(measured)
        figure.savefig(folder / f"{draw.__name__}.svg", metadata={"Date": None})
        plt.close(figure)


if __name__ == "__main__":
    main()
