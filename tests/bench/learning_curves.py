"""The picture of learning_report.py: what learning.py measured, over the steps."""

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

SMOOTHED_OVER = 50  # steps of training loss
# Of the steps, on the left and on the right: what lies before may be cut off, or it would hide the
# rest.
SHOWN_FROM = 0.1, 0.3


def draw(runs, path):
    """Loss on the left, its distance from bf16's on the right. `runs`: (label, row, the row of bf16
    or None), bf16 first.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 5), layout="constrained")
    shown = {left: [], right: []}
    for index, (label, row, baseline) in enumerate(runs):
        color = "black" if index == 0 else f"C{index - 1}"
        plain = None if baseline is None or baseline is row else _curves(baseline)
        for number, (steps, values) in enumerate(_curves(row)):
            style = [
                {"marker": "o", "markersize": 3, "linewidth": 1.4, "label": label},
                {"linewidth": 0.7, "alpha": 0.45},
            ][number]
            left.plot(steps, values, color=color, **style)
            shown[left].append((steps, values))
            if plain:
                difference = values - plain[number][1]
                right.plot(steps, difference, color=color, **style)
                shown[right].append((steps, difference))
    left.set(title="Loss", ylabel="bits per byte")
    right.set(title="Distance from bf16", ylabel="bits per byte above bf16")
    right.axhline(0, color="black", linewidth=0.8)
    for (axes, series), since in zip(shown.items(), SHOWN_FROM, strict=True):
        axes.set_xlabel(f"step (thin: training loss, mean of {SMOOTHED_OVER} steps)")
        axes.grid(alpha=0.3)
        if series:
            axes.set_ylim(*_limits(series, since))
            axes.legend(title="held-out text")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _curves(row):
    """(steps, values) of held-out text, and of training, smoothed."""
    held_out = np.array(row["held_out"], dtype=float).T
    window = min(SMOOTHED_OVER, len(row["losses"]))
    smooth = np.convolve(row["losses"], np.ones(window) / window, mode="valid")
    return [tuple(held_out), (np.arange(len(smooth)) + window, smooth)]


def _limits(series, since):
    """The lowest and highest value of what must be seen, with a margin; None, None if there are
    none.
    """
    last = max(steps[-1] for steps, _ in series)
    seen = np.concatenate([values[steps >= since * last] for steps, values in series])
    seen = seen[np.isfinite(seen)]
    if not seen.size:
        return None, None
    margin = 0.05 * (seen.max() - seen.min()) or 0.01
    return seen.min() - margin, seen.max() + margin
