"""docs/operators.md: the operator table by format, from the rows that handlers are entered by."""

from narrowcast import registry

_HEAD = """# Operators

What an operation does with a `QuantizedTensor`, sharded or not. Printed by `narrowcast operators`
from the table that the code runs on (`bindings/python/narrowcast/operators/table.py`), so also for
formats of your own.

Each cell is **exact** (on the bytes: `dequantize(op(q)) == op(dequantize(q))`), an **identity**
(the same bytes), **read** (a view that has no bytes: products and arithmetic read its values, which
are exact, and all else is an error with the reason given), or an **error** with its reason. What is
in no row is arithmetic: out of place (`w + 1`, `w.norm()`, `w.float()`) it makes a plain tensor,
outside of forwards and backwards of the master and within them of decoded values
([the rule](arithmetic.md)); in place it is an error. `w.amax` is a buffer (or None), not torch's
method: `torch.amax(w, dim)` is the operation.

Cuts and joints elsewhere than where a cell says are errors that name the format, the numbers and
the nearest legal bounds. The end of a tensor is always legal, and a tensor with one usage alone has
the steps of that usage: those of `runtime/geometry/geometry.hpp`.
"""


def text(rows) -> str:
    """The page, of all loaded formats: first what is alike in all, then a section for each group of
    formats with the same outcomes.
    """
    formats = [registry.format(name) for name in registry.formats()]
    alike = [row for row in rows if len({row.rule(format) for format in formats}) == 1]
    differing = [row for row in rows if row not in alike]
    groups: dict[tuple, list[registry.Format]] = {}
    for format in formats:
        groups.setdefault(tuple(row.rule(format) for row in differing), []).append(format)
    lines = [_HEAD, "## In every format", "", *_table(alike, formats[0]), "", "## By format"]
    for group in groups.values():
        names = ", ".join(f"`{format.name}`" for format in group)
        lines += ["", f"### {names}", "", *_table(differing, group[0])]
    return "\n".join(lines) + "\n"


def _table(rows, format: registry.Format) -> list[str]:
    lines = ["| operation | outcome |", "|---|---|"]
    for row in rows:
        outcome = row.rule(format)
        lines.append(f"| {row.title} | **{outcome.kind}**: {outcome.text} |")
    return lines
