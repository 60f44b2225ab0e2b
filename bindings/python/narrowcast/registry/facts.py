"""What the facts of a format are made of: its usages, what operations do with it, its products."""

from dataclasses import dataclass


@dataclass(frozen=True)
class UsageLayout:
    """How one usage is stored. `block`, `scale_per`: (rows, columns) or "tensor"; `scale_pad`: of
    the stored scale matrix; `step`: the rows and columns at whose multiples it can be cut.
    """

    block: tuple[int, int] | str
    scale_per: tuple[int, int] | str
    scale_pad: tuple[int, int]
    transposed: bool
    scale_transposed: bool
    step: tuple[int, int]
    element_bits: int
    scale_bytes: int

    @property
    def wire_bits(self) -> float:
        """Of an element in a gather: a scale travels once a block, one of the tensor not at all."""
        if self.block == "tensor":
            return self.element_bits
        rows, columns = self.block
        return self.element_bits + 8 * self.scale_bytes / (rows * columns)


@dataclass(frozen=True)
class Outcome:
    """What an operation does with a weight. `kind`: "exact" (on the bytes), "identity" (the same
    bytes), "read" (a view without bytes of its own) or "error"; `text`: under which condition, or
    for which reason.
    """

    kind: str
    text: str


@dataclass(frozen=True)
class Rules:
    """Of the operations whose outcome depends on the format."""

    cut: Outcome
    transpose: Outcome
    join: Outcome
    write_part: Outcome
    make: Outcome


@dataclass(frozen=True)
class Product:
    """A matrix product of operands that are cast. `kind`: by the scales of its operands;
    `machines`: those whose matrix units know the kind, while all others decode the operands;
    `reason`: in words.
    """

    number: int  # of the kind
    kind: str
    machines: str
    reason: str


@dataclass(frozen=True)
class Products:
    """What a linear layer's input and the gradient of its output are cast to, by the names of
    formats, and its three products.
    """

    input: str
    gradient: str
    stochastic_gradient: bool  # its codes are rounded stochastically
    forward: Product
    input_gradient: Product
    weight_gradient: Product
