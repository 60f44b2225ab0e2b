"""QuantizedTensor, what it is made of, and how one is made."""

from narrowcast.tensor.wrapper import LOGICAL_DTYPES, QuantizedTensor, rebuild

__all__ = ["LOGICAL_DTYPES", "QuantizedTensor", "rebuild"]
