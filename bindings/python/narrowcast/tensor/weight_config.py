"""What a weight keeps through copies, pickling, sharding and gathers."""

from typing import NamedTuple


class Label(NamedTuple):
    """What a weight keeps through copies: its name, for messages, and nc.convert's options."""

    name: str | None = None
    recompute: bool | None = False  # None: as the first gather finds it
    matmul: str = "dequantized"


UNNAMED = Label()
