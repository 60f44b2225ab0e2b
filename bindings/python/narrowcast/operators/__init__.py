"""What each function and ATen operator does with a QuantizedTensor: exact on the bytes, a plain
tensor, or refused with a reason. Products of matrices are narrowcast.matmul.
"""

from narrowcast.operators import (  # which enter handlers
    arithmetic,
    collectives,
    copies,
    functions,
    views,
    writes,
)

__all__ = ["arithmetic", "collectives", "copies", "functions", "views", "writes"]
