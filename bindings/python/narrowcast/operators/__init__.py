"""What each function and ATen operator does with a QuantizedTensor: exact on the bytes, a plain
tensor, or refused with a reason. load() fills the tables of narrowcast.tensor.dispatch; products
of matrices are narrowcast.matmul.
"""

import importlib

_HANDLERS = "arithmetic collectives copies functions joins views writes"


def load() -> None:
    """Imports the modules that enter handlers."""
    for name in _HANDLERS.split():
        importlib.import_module(f"{__name__}.{name}")
