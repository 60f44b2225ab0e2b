"""The picture of optimizers.py: a bar a row."""

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def draw(rows: list[dict], path: str) -> None:
    """Milliseconds of a step, and its share of a copy's speed."""
    labels = [f"{row['optimizer']}, {row['format']}, {row['state']}" for row in rows]
    figure, axis = plt.subplots(figsize=(8, 1.2 + 0.3 * len(rows)), layout="constrained")
    colors = ["C0" if row["optimizer"].startswith("nc.") else "C7" for row in rows]
    bars = axis.barh(labels, [row["ms"] for row in rows], color=colors)
    axis.bar_label(bars, [f"{row['of_copy']:.2f} of copy" for row in rows], padding=3, fontsize=8)
    axis.invert_yaxis()
    axis.set_xlabel(f"ms a step, {rows[0]['parameters'] / 1e6:,.0f} million parameters")
    axis.margins(x=0.18)
    figure.savefig(path, dpi=120)
    plt.close(figure)
