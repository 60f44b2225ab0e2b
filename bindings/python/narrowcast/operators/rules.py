"""How a row of the table decides an outcome: the same for every format, or as was generated with
the format. The handlers ask these, and the table of docs/operators.md prints them.
"""

from __future__ import annotations

from narrowcast.operators.common import refuse
from narrowcast.registry import Format, Outcome


def always(kind: str, text: str):
    """The rule of an operation whose outcome is that of every format."""
    outcome = Outcome(kind, text)
    return lambda format: outcome


def of_format(name: str):
    """The rule that each format brings (narrowcast.registry.Rules)."""

    def rule(format: Format) -> Outcome:
        return getattr(format.rules, name)

    return rule


def require(outcome: Outcome, tensor, func) -> None:
    """Raises the error, if this is one."""
    if outcome.kind == "error":
        refuse(tensor, func, f"is not possible: {outcome.text}. Use dequantize()")
