"""The picture of learning_report.py: what learning.py measured, over the steps."""

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

SMOOTHED_OVER = 50  # steps of training loss
# Of the steps, on the left and on the right: what lies before may be cut off, or it would hide the
# rest.
SHOWN_FROM = 0.1, 0.3


def draw(runs, units, path):
    """Loss on the left, its distance from the first mode's on the right, with a row of both for
    each unit: "step", "million tokens" or "minutes". `runs`: (label, row, the first mode's row or
    None), the first mode first.
    """
    size = (13, 5 * len(units))
    figure, rows = plt.subplots(len(units), 2, figsize=size, layout="constrained", squeeze=False)
    for unit, (left, right) in zip(units, rows, strict=True):
        _draw_row(runs, unit, left, right)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _draw_row(runs, unit, left, right):
    shown = {left: [], right: []}
    for index, (label, row, baseline) in enumerate(runs):
        color = "black" if index == 0 else f"C{index - 1}"
        plain = None if baseline is None or baseline is row else _curves(baseline, unit)
        for number, (xs, values) in enumerate(_curves(row, unit)):
            style = [
                {"marker": "o", "markersize": 3, "linewidth": 1.4, "label": label},
                {"linewidth": 0.7, "alpha": 0.45},
            ][number]
            left.plot(xs, values, color=color, **style)
            shown[left].append((xs, values))
            # At one time runs read different windows, which training losses are of.
            if plain and (number == 0 or unit != "minutes"):
                apart = _distance(xs, values, *plain[number])
                right.plot(*apart, color=color, **style)
                shown[right].append(apart)
    first = runs[0][1]["mode"]
    left.set(title="Loss", ylabel="bits per byte")
    right.set(title=f"Distance from {first}", ylabel=f"bits per byte above {first}")
    right.axhline(0, color="black", linewidth=0.8)
    for (axes, series), since in zip(shown.items(), SHOWN_FROM, strict=True):
        axes.set_xlabel(f"{unit} (thin: training loss, mean of {SMOOTHED_OVER} steps)")
        axes.grid(alpha=0.3)
        if series:
            axes.set_ylim(*_limits(series, since))
            axes.legend(title="held-out text")


def _curves(row, unit):
    """(xs, values) of held-out text, and of training, smoothed."""
    steps, values, _ = np.array(row["held_out"], dtype=float).T
    window = min(SMOOTHED_OVER, len(row["losses"]))
    smooth = np.convolve(row["losses"], np.ones(window) / window, mode="valid")
    trained = np.arange(len(smooth)) + window
    return [(_in_unit(steps, row, unit), values), (_in_unit(trained, row, unit), smooth)]


def _in_unit(steps, row, unit):
    if unit == "million tokens":
        return steps * row["batch"] * row["seq"] / 1e6
    if unit == "minutes":  # between evaluations steps are about equally long
        known, _, seconds = np.array([(0, 0, 0), *row["held_out"]], dtype=float).T
        return np.interp(steps, known, seconds / 60)
    return steps


def _distance(xs, values, plain_xs, plain_values):
    """Where both are: (xs, differences)."""
    both = (xs >= plain_xs[0]) & (xs <= plain_xs[-1])
    return xs[both], values[both] - np.interp(xs[both], plain_xs, plain_values)


def _limits(series, since):
    """The lowest and highest value of what must be seen, with a margin; None, None if there are
    none.
    """
    last = max(xs.max(initial=0) for xs, _ in series)
    seen = np.concatenate([values[xs >= since * last] for xs, values in series])
    seen = seen[np.isfinite(seen)]
    if not seen.size:
        return None, None
    margin = 0.05 * (seen.max() - seen.min()) or 0.01
    return seen.min() - margin, seen.max() + margin
