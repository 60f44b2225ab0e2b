"""What tests look at of the weights of a converted model."""

import narrowcast as nc
from narrowcast.tensor import dtensors


def quantized(weight):
    """A QuantizedTensor of a weight's bytes."""
    if isinstance(weight, nc.MasterWeight):
        return nc.QuantizedTensor(weight._view, weight.shape, weight.dtype)
    return weight


def value_of(parameter):
    """The float32 value of a weight, of its local part where it is cut over ranks. What is not
    converted is its value itself.
    """
    local = dtensors.local_of(parameter).detach()
    return getattr(local, "value", local)
