"""The command `narrowcast`: which formats there are, and what one of them is."""

from __future__ import annotations

import argparse
import sys

from narrowcast import picture, registry


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line. Returns the exit status: 0, or 1 after an error."""
    parser = argparse.ArgumentParser(
        prog="narrowcast", description="Narrow number formats for model weights."
    )
    commands = parser.add_subparsers(required=True)
    listing = commands.add_parser("list", help="the loaded formats")
    listing.set_defaults(run=lambda options: print_list())
    showing = commands.add_parser("show", help="one format: its facts and its bytes")
    showing.add_argument("format")
    showing.add_argument(
        *("--shape",), type=_shape, default=(4096, 4096), metavar="ROWSxCOLUMNS", help="a weight's"
    )
    showing.set_defaults(run=lambda options: print_format(options.format, *options.shape))
    options = parser.parse_args(arguments)
    try:
        options.run(options)
    except ValueError as error:
        print(f"narrowcast: {error}", file=sys.stderr)
        return 1
    return 0


def _shape(text: str) -> tuple[int, int]:
    rows, _, columns = text.lower().partition("x")
    if not (rows.isdecimal() and columns.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not ROWSxCOLUMNS, such as 300x520")
    return int(rows), int(columns)


def print_list() -> None:
    """A row for each loaded format."""
    rows = [
        ("format", "bits", "element", "scale", "rowwise", "columnwise", "gathered", "loaded from")
    ]
    for f in map(registry.format, registry.formats()):
        scale = f"{f.scale} + {f.tensor_scale}" if f.tensor_scale else f.scale
        blocks = picture.block(f.rowwise.block), picture.block(f.columnwise.block)
        bits = f"{f.bits_per_element:.4g}"
        rows.append((f.name, bits, f.element, scale, *blocks, f.gather, f.path))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())


def print_format(name: str, rows: int, columns: int) -> None:
    """Facts, a picture of the bytes, and their number for a weight."""
    f = registry.format(name)
    under = f", under one {f.tensor_scale} scale of the tensor" if f.tensor_scale else ""
    derived = "rearranged from the rowwise bytes" if f.columnwise_derived else "from the master"
    gathered = "rowwise, in both passes" if f.gather == "rowwise" else "each pass its own usage"
    facts = {
        "element": f"{f.element}, {f.rowwise.element_bits} bits, {f.packing}",
        "scale": f"{f.scale}, rule {f.scale_rule}{under}",
        "amax": f"of the tensor, {f.amax}" if f.tensor_amax else "of a block",
        "columnwise": derived,
        "bits per element": f"{f.bits_per_element:.6g}, {f.wire_bits_per_element:.6g} on the wire",
        "row step": f"{f.row_step}: shards begin at its multiples",
        "gathered": gathered,
        "reference": f.reference,
        "loaded from": f.path,
    }
    print(f"{f.name}: {f.summary}\n")
    for key, value in facts.items():
        print(f"  {key:<18}{value}")
    for usage in registry.USAGES:
        print()
        print("\n".join(picture.usage(f, usage, rows, columns)))
