"""docs/operators.md: the operator table by format, from the rows that handlers are entered by."""

from __future__ import annotations

from narrowcast import registry

_HEAD = """# Operators

What an operation does with a `QuantizedTensor`, sharded or not. Printed by `narrowcast operators`
from the table that the code runs on (`bindings/python/narrowcast/operators/table.py`), so also for
formats of your own.

Each cell is **exact** (on the bytes: `dequantize(op(q)) == op(dequantize(q))`), an **identity**
(the same bytes), or an **error** with its reason. Nothing dequantizes silently. What is in no row
is arithmetic: out of place (`w + 1`, `w.norm()`, `x @ w`, `w.float()`) it makes a plain tensor of
decoded values, in place it is an error.

Cuts and joints elsewhere than where a cell says are errors that name the format, the numbers and
the nearest legal bounds. The end of a tensor is always legal, and a tensor with one usage alone has
the steps of that usage: those of `runtime/geometry/geometry.hpp`.
"""


def text(rows) -> str:
    """The page, of all loaded formats."""
    formats = [registry.format(name) for name in registry.formats()]
    alike, differing = [], []
    for row in rows:
        outcomes = {row.rule(format) for format in formats}
        (alike if len(outcomes) == 1 else differing).append(row)
    return "\n".join([_HEAD, *_alike(alike, formats[0]), *_by_format(differing, formats)]) + "\n"


def _cell(outcome) -> str:
    return f"**{outcome.kind}**: {outcome.text}"


def _alike(rows, format) -> list[str]:
    lines = ["## In every format", "", "| operation | outcome |", "|---|---|"]
    lines += [f"| {row.title} | {_cell(row.rule(format))} |" for row in rows]
    return [*lines, ""]


def _by_format(rows, formats) -> list[str]:
    """A section for each group of formats with the same outcomes."""
    groups: dict[tuple, list[str]] = {}
    for format in formats:
        groups.setdefault(tuple(row.rule(format) for row in rows), []).append(format.name)
    lines = ["## By format"]
    for outcomes, names in groups.items():
        lines += ["", "### " + ", ".join(f"`{name}`" for name in names), ""]
        lines += ["| operation | outcome |", "|---|---|"]
        pairs = zip(rows, outcomes, strict=True)
        lines += [f"| {row.title} | {_cell(outcome)} |" for row, outcome in pairs]
    return lines
