"""What decides the outcome of an operation: the facts of a format, and nothing else. The handlers
ask these rules, and the table of docs/operators.md prints them.
"""

from __future__ import annotations

import dataclasses

from narrowcast.operators.common import refuse
from narrowcast.registry import USAGES, Format


@dataclasses.dataclass(frozen=True)
class Outcome:
    """`kind`: "exact" (on the bytes), "identity" (the same bytes) or "error"; `text`: under which
    condition, or for which reason.
    """

    kind: str
    text: str

    def require(self, tensor, func) -> None:
        """Raises the error, if this is one."""
        if self.kind == "error":
            refuse(tensor, func, f"is not possible: {self.text}. Use dequantize()")


def always(kind: str, text: str):
    """The rule of an operation whose outcome is that of every format."""
    outcome = Outcome(kind, text)
    return lambda format: outcome


def cut(format: Format) -> Outcome:
    return Outcome("exact", f"cuts {_steps(format)}")


def _steps(format: Format) -> str:
    rows, columns = format.step(USAGES)
    if rows == columns == 1:
        return "anywhere"
    return f"at multiples of {rows} rows, {columns} columns"


def transposition(format: Format) -> Outcome:
    if not format.mirrored:
        return Outcome(
            "error",
            "its columnwise bytes are not stored as the rowwise bytes of the transposed matrix",
        )
    if not format.columnwise_derived:
        return Outcome(
            "error",
            "its columnwise bytes are quantized in blocks of their own, so the transposed matrix "
            "would have other values",
        )
    return Outcome("exact", "the usages change places, over the same buffers")


def join(format: Format) -> Outcome:
    spanning = ", and pieces of one tensor-wide scale" if format.tensor_amax else ""
    return Outcome("exact", f"joints {_steps(format)}{spanning}")


def write_to_part(format: Format) -> Outcome:
    if format.tensor_amax:
        return Outcome(
            "error",
            "without a master, for a scale spans the whole tensor; with one: exact, through it",
        )
    return Outcome("exact", "the bytes of the value quantized alone, which has blocks of its own")


def make(format: Format) -> Outcome:
    held = {
        ("rows" if getattr(format, usage).transposed else "columns"): format.group
        for usage in USAGES
        if format.group > 1
    }
    if not held:
        return Outcome("exact", "any shape")
    return Outcome("exact", " and ".join(f"{what} in multiples of {n}" for what, n in held.items()))
