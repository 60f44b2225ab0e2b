"""Tables of text, and sizes for people."""

from collections.abc import Sequence


def lines(rows: Sequence[Sequence[str]], right: int) -> str:
    """Rows in columns two blanks apart: those from number `right` on aligned at their right end."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if index >= right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def size(bytes: int) -> str:
    """Such as "1.44 MB"; 0 is "-"."""
    if bytes == 0:
        return "-"
    amount, units = float(bytes), ["B", "kB", "MB", "GB", "TB"]
    while amount >= 999.5 and len(units) > 1:
        amount, units = amount / 1000, units[1:]
    return f"{bytes} B" if units[0] == "B" else f"{amount:.3g} {units[0]}"
