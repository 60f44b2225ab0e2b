"""A format's facts, as its spec file states them."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from reference.numbers import Element, element_of

try:
    import tomllib
except ImportError:  # Python 3.10
    import tomli as tomllib


@dataclass(frozen=True)
class Usage:
    """How one usage is blocked and stored. `block` is None where one scale spans the tensor."""

    block: tuple | None
    per: tuple | None
    pad: tuple
    transposed: bool
    scale_transposed: bool


@dataclass(frozen=True)
class Format:
    name: str
    element: Element
    packing: str  # "dense" or "byte"
    scale: str  # "e8m0", "e4m3" or "f32"
    tensor_scale: str | None
    rowwise: Usage
    columnwise: Usage
    rule: str
    amax: str  # "current" or "delayed"

    @property
    def spans_tensor(self):
        """A scale spans the tensor, so its amax is kept."""
        return self.rowwise.block is None or self.tensor_scale is not None

    @property
    def derived(self):
        """The columnwise bytes are a rearrangement of the rowwise ones."""
        return self.rowwise.block == self.columnwise.block

    @cached_property
    def stored_bits(self):
        return 8 if self.packing == "byte" else self.element.bits

    @property
    def group(self):
        """The elements that fill whole bytes: a stored row's length must be a multiple."""
        return {4: 2, 6: 4, 8: 1}[self.stored_bits]


def _usage(facts):
    block = None if facts["block"] == "tensor" else tuple(facts["block"])
    transposed = facts.get("transposed", False)
    return Usage(
        block=block,
        per=tuple(facts["scale_per"]) if "scale_per" in facts else block,
        pad=tuple(facts.get("scale_pad", (1, 1))),
        transposed=transposed,
        scale_transposed=facts.get("scale_transposed", transposed),
    )


def format_from(facts):
    """A Format from the tables of a spec file."""
    scale = facts["scale"]["type"]
    return Format(
        name=facts["format"],
        element=element_of(facts["element"]["type"], scale),
        packing=facts["element"].get("packing", "dense"),
        scale=scale,
        tensor_scale=facts.get("tensor_scale", {}).get("type"),
        rowwise=_usage(facts["rowwise"]),
        columnwise=_usage(facts["columnwise"]),
        rule=facts["quantize"]["scale"],
        amax=facts["quantize"].get("amax", "current"),
    )


def load_format(path):
    """The format of a spec file."""
    return format_from(tomllib.loads(Path(path).read_text(encoding="utf-8")))
