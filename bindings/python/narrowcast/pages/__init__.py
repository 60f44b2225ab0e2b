"""What a reader is shown of formats, from the facts that the generator writes (facts.json): the
page of each (page.md), and the table of all (README.md).

It stands alone: tools/regenerate.py uses it in a tree that is not built.
"""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

_USAGES = "rowwise", "columnwise"

_METHOD = """\
The relative error is `sqrt(sum (q - x)^2 / sum x^2)`, the root mean square of the error over that \
of the values; the signal-to-noise ratio is its `-20 log10`. x is a fixed matrix of 256 x 256 \
standard normal numbers (Marsaglia's polar method over a counter: `codegen/gaussian.hpp`), q what \
is left of it after the format's cast to nearest, with scales from the amax of x itself."""


def write(folder: Path) -> None:
    """Writes a format's page beside its facts. OSError if it cannot be."""
    f = json.loads((folder / "facts.json").read_text(encoding="utf-8"))
    (folder / "page.md").write_text(page(f), encoding="utf-8")


def page(f: dict) -> str:
    """The page of a format with these facts."""
    rows, columns = f["shape"]
    reasons = f["reasons"]
    return f"""\
<!-- {f["origin"]} -->
# {f["name"]}

{f["summary"]}

Reference: {f["reference"]}

{_table(("fact", "value"), _rows_of_facts(f))}

## Bytes

The buffers of a matrix of {rows} x {columns}. `narrowcast show {f["name"]}` draws the elements that
the first bytes hold.

{reasons["packing"]} A value is decoded as {reasons["decoding"]}.

{_table(("buffer", "type", "shape", "bytes"), _buffers(f))}

## Cuts

- Row step {f["row_step"]}. {reasons["row_step"]}
- Row step of a shard {f["shard_row_step"]}. {reasons["shard_row_step"]}

## What operations do with it

{_table(("operation", "outcome"), _rules(f))}

## What FSDP2 gathers

{reasons["gather"]}

{_table(("phase", "all-gather", "bits a parameter", f"bytes, of {rows} x {columns}"), _phases(f))}

A scale travels once a block, without padding; the bytes are those of all shards together, before \
FSDP2 makes them equally long.{_filled(f)}
{reasons["optimizer_passes"]} {reasons["amax"]}

## Flat shards

{reasons["flat_shards"]}

## Matrix products

{_products(f["matmul"])}

## Error

{_METHOD}
"""


def index(formats: list[dict]) -> str:
    """A table that compares the formats with these facts."""
    head = "format | element | scale | blocks | bits | on the wire | gather | row step | passes"
    head += " | relative error | signal to noise"
    table = _table(head.split(" | "), map(_index_row, formats))
    return f"""\
<!-- Made from all files of spec/; edit those and run `make regenerate`. -->
# All formats

{table}

- **blocks**: elements that share a scale, rows x columns; two where the usages differ, rowwise \
first.
- **bits**: of an element of one usage (of rowwise, where they differ), its share of the scales \
included, as stored and without padding; **on the wire**: as a gather carries it, each scale once.
- **gather**: *rowwise*: every all-gather carries the rowwise bytes, and columnwise is derived \
from them. *by pass*: the forward gathers rowwise, the backward columnwise.
- **row step**: a matrix can be cut at multiples of so many rows. **passes**: kernels of an \
optimizer step.
- **relative error**, **signal to noise**: of rowwise. {_METHOD}

Each format's page lists its buffers, and what each phase of FSDP2 gathers. The facts are \
those of [spec/](../spec/README.md), the bytes those of
[docs/numerics.md](../docs/numerics.md).
"""


# ---- rows of tables ----


def _table(columns: Sequence[str], rows: Iterable[Iterable]) -> str:
    head, *lines = ["| " + " | ".join(map(str, row)) + " |" for row in (columns, *rows)]
    return "\n".join([head, "|" + "---|" * len(columns), *lines])


def _rows_of_facts(f: dict) -> list[tuple]:
    return [
        ("element", f"{f['element']}, {f['packing']}"),
        ("scale", _scale(f)),
        ("rule from amax to scale", f"{f['scale_rule']}, {f['amax']} amax"),
        ("rowwise block", _block(f["rowwise"])),
        ("columnwise block", _block(f["columnwise"])),
        *_bits(f),
        ("gather", f["gather"]),
        ("row step", f["row_step"]),
        ("row step of a shard", f["shard_row_step"]),
        ("passes of an optimizer step", f["optimizer_passes"]),
        ("relative error on Gaussian data, rowwise", ", ".join(_error(f["rowwise"]))),
        ("relative error on Gaussian data, columnwise", ", ".join(_error(f["columnwise"]))),
    ]


def _bits(f: dict) -> Iterator[tuple]:
    """Of each usage, where they differ."""
    differ = any(f["rowwise"][bits] != f["columnwise"][bits] for bits in ("bits", "wire_bits"))
    for usage in _USAGES if differ else _USAGES[:1]:
        stored, wire = (f", {usage}", f", {usage}") if differ else (", one usage", "")
        yield f"bits an element{stored} as stored", _number(f[usage]["bits"])
        yield f"bits an element{wire} on the wire", _number(f[usage]["wire_bits"])


def _buffers(f: dict) -> list[tuple]:
    rows = []
    for usage in _USAGES:
        for name, buffer in (("data", f[usage]["data"]), ("scale_inv", f[usage]["scale"])):
            spans = name == "scale_inv" and f[usage]["block"] == "tensor"
            shape = "(1,)" if spans else str(tuple(buffer["shape"]))
            rows.append((f"`{usage}_{name}`", buffer["type"], shape, buffer["bytes"]))
    if f["tensor_amax"]:
        rows.append(("`amax`", "float32", "(1,)", 4))
    if f["history"]:
        rows.append(("`history`", "float32", f"({f['history']},)", 4 * f["history"]))
    return rows


def _rules(f: dict) -> list[tuple]:
    names = "a cut", "the transpose", "values into a part"
    return [
        (name, f"**{'exact' if rule['exact'] else 'error'}**: {rule['text']}")
        for name, rule in zip(names, f["rules"], strict=True)
    ]


def _phases(f: dict) -> list[tuple]:
    """The phases of training under FSDP2, and the all-gather that serves each."""
    again = "a forward computed again in the backward (`recompute=True`)"
    unsharded = "kept unsharded (`reshard_after_forward=False`)"
    rowwise, columnwise = ([f[u]["wire_bits"], f[u]["wire_bytes"]] for u in _USAGES)
    if f["gather"] == "rowwise":
        phases = [
            ("forward", "rowwise", rowwise),
            ("backward", "rowwise; columnwise has the same values", rowwise),
            (again, "rowwise, as any backward", rowwise),
            (unsharded, "rowwise in the forward, nothing in the backward", rowwise),
        ]
    else:
        # FSDP2 fixes a payload's size once, so the smaller of the two is filled up.
        either = list(map(max, rowwise, columnwise))
        both = [one + other for one, other in zip(rowwise, columnwise, strict=True)]
        phases = [
            ("forward", "rowwise", either),
            ("backward", "columnwise", either),
            (again, "both, in the forward and in the backward", both),
            (unsharded, "both in the forward, nothing in the backward", both),
        ]
    return [(name, what, _number(bits), size) for name, what, (bits, size) in phases]


def _filled(f: dict) -> str:
    same_size = f["rowwise"]["wire_bits"] == f["columnwise"]["wire_bits"]
    if f["gather"] == "rowwise" or same_size:
        return ""
    fixed = "FSDP2 fixes the size of a payload once for both passes"
    return f" {fixed}: that of the smaller is filled up."


def _products(matmul: dict | None) -> str:
    if matmul is None:
        named = "the spec names no formats that activations and gradients are cast to"
        return f"Those of decoded weights and plain activations: {named}."
    names = ("forward", "input gradient", "weight gradient")
    rows = [
        (name, product["reason"], product["machines"])
        for name, product in zip(names, matmul["products"], strict=True)
    ]
    rounding = "stochastically" if matmul["stochastic_gradient"] else "to nearest"
    return f"""\
With `matmul="scaled"`, a linear layer casts its input to `{matmul["input"]}` and the gradient of \
its output to `{matmul["gradient"]}`, rounded {rounding}.
A product is that of the decoded values; where the machine has no matrix unit for it, the operands \
are decoded first.

{_table(("product", "operands", "matrix unit"), rows)}"""


def _index_row(f: dict) -> list:
    rowwise, columnwise = _block(f["rowwise"]), _block(f["columnwise"])
    return [
        f"[`{f['name']}`]({f['name']}/page.md)",
        f["element"],
        _scale(f),
        rowwise if rowwise == columnwise else f"{rowwise} and {columnwise}",
        _number(f["rowwise"]["bits"]),
        _number(f["rowwise"]["wire_bits"]),
        f["gather"],
        f["row_step"],
        f["optimizer_passes"],
        *_error(f["rowwise"]),
    ]


# ---- words ----


def _block(usage: dict) -> str:
    block = usage["block"]
    return block if block == "tensor" else f"{block[0]}x{block[1]}"


def _scale(f: dict) -> str:
    above = f", under a tensor scale of {f['tensor_scale']}" if f["tensor_scale"] else ""
    return f["scale"] + above


def _error(usage: dict) -> tuple[str, str]:
    """In about the digits that another sample of this size would share."""
    error = usage["relative_error"]
    return f"{100 * error:.2f} %", f"{-20 * math.log10(error):.1f} dB"


def _number(value: float) -> str:
    """As few digits as tell it, six at the most."""
    return f"{value:.6g}"
