"""The functions of nn.init on a QuantizedTensor: they act on the high-precision value, with the
random numbers of a plain tensor, and the bytes are made once. A fill is an operation that does so
already (narrowcast.operators.writes); functions of several operations are replaced in torch
(narrowcast.conversion.torch_hooks).
"""

import functools

import torch

from narrowcast.tensor import QuantizedTensor, dtensors


def by_value(function):
    """An initializer that runs on a plain float32 tensor in place of a quantized one, sharded or
    not, and writes what it leaves.
    """

    @functools.wraps(function)
    def initializer(tensor, *args, **kwargs):
        local = dtensors.local_of(tensor)
        if not isinstance(local, QuantizedTensor):
            return function(tensor, *args, **kwargs)
        plain = torch.empty(local.shape, dtype=torch.float32, device=local.device)
        value = dtensors.like(tensor, plain)
        if function.__name__ == "eye_":  # torch.eye knows no sharding
            (rows, columns), (row, column) = dtensors.box(tensor)
            plain.copy_(torch.eye(*tensor.shape)[row : row + rows, column : column + columns])
        else:
            function(value, *args, **kwargs)
        with torch.no_grad():
            tensor.copy_(value)
        return tensor

    return initializer
