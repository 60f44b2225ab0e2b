"""The picture of where_bytes_lie.py: a bar a way of keeping weights, a piece a kind of bytes."""

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

PIECES = {
    "weights": ("codes and scales, or values", "#4477aa"),
    "masters": ("fp32 masters", "#66ccee"),
    "moments": ("moments", "#ccbb44"),
    "gradients": ("gradients", "#ee6677"),
}


def draw(rows, path):
    """On the left what stays of a weight that is trained, in the middle what is gathered, on the
    right what stays of a frozen one.
    """
    height = 0.32 * len(rows) + 1.4
    figure, (stays, comes, frozen) = plt.subplots(
        *(1, 3),
        figsize=(13, height),
        sharey=True,
        layout="constrained",
        width_ratios=(5, 2, 2),
    )
    names = [row["kept"] for row in rows]
    left = [0.0] * len(rows)
    for key, (label, color) in PIECES.items():
        values = [row[key] for row in rows]
        stays.barh(names, values, left=left, color=color, label=label)
        left = [a + b for a, b in zip(left, values, strict=True)]
    comes.barh(names, [max(row["forward"], row["backward"]) for row in rows], color="#228833")
    frozen.barh(names, [row["frozen"] for row in rows], color=PIECES["weights"][1])
    stays.set_title("trained: all ranks together")
    comes.set_title("gathered: each rank")
    frozen.set_title("frozen: all ranks together")
    for axes in (stays, comes, frozen):
        axes.set_xlabel("bytes an element")
        axes.grid(axis="x", alpha=0.3)
    stays.invert_yaxis()
    figure.legend(*stays.get_legend_handles_labels(), loc="outside lower left", ncols=len(PIECES))
    plt.rcParams["svg.hashsalt"] = "narrowcast"  # the same file each time
    plt.rcParams["svg.fonttype"] = "none"
    figure.savefig(path, metadata={"Date": None} if str(path).endswith(".svg") else None)
    plt.close(figure)
