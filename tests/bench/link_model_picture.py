"""The picture of link_model.py: a panel a link's speed, over the number of GPUs."""

import itertools

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

import modes


def draw(rows, path):
    """A step's speed as a share of bf16's with float32 gradients; dashed where extrapolated."""
    panels = {}
    for row in rows:
        panels.setdefault(row["gbit_per_s"], {}).setdefault(row["mode"], []).append(row)
    size = (3.2 * len(panels), 4.4)
    figure, axes = plt.subplots(
        1, len(panels), figsize=size, sharey=True, squeeze=False, layout="constrained"
    )
    weights = list(dict.fromkeys(modes.parse(row["mode"]).weights for row in rows))
    for panel, (speed, curves) in zip(axes[0], panels.items(), strict=True):
        for mode, points in curves.items():
            _curve(panel, mode, points, f"C{weights.index(modes.parse(mode).weights)}")
        panel.set_xscale("log", base=2)
        panel.xaxis.set_major_formatter("{x:g}")
        panel.set(title=f"{speed:g} Gb/s a GPU", xlabel="GPUs")
        panel.grid(alpha=0.3)
    axes[0, 0].set_ylabel("tokens/s a rank, of bf16's")
    figure.suptitle("A model, not a measurement. Dashed and hollow: extrapolated")
    handles, labels = panel.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _curve(panel, mode, points, color):
    gradients = modes.parse(mode).gradients
    marker = "s" if gradients == modes.BF16_GRADIENTS else "o"
    style = {"color": color, "linewidth": 2.2 if gradients == modes.NARROW else 1.0}
    panel.plot([], [], label=mode, marker=marker, markersize=4, **style)
    for pair in itertools.pairwise(points):
        dashed = any(point["extrapolated"] for point in pair)
        places = [[point[key] for point in pair] for key in ("gpus", "of_baseline")]
        panel.plot(*places, linestyle="--" if dashed else "-", **style)
    for point in points:
        fill = "none" if point["extrapolated"] else color
        panel.plot(
            point["gpus"],
            point["of_baseline"],
            marker,
            color=color,
            markerfacecolor=fill,
            markersize=4,
        )
