"""The functions of nn.init on a QuantizedTensor: they act on the high-precision value, with the
random numbers of a plain tensor, and the bytes are made once.

A fill is an operation that does so already (narrowcast.operators.writes). The functions of several
operations, of which no one says what the whole is, are wrapped here: for quantized weights alone;
any other tensor goes straight to torch's function.
"""

from __future__ import annotations

import functools

import torch
from torch import nn

from narrowcast.fsdp import dtensors
from narrowcast.tensor import QuantizedTensor


def _initialize(func, args, kwargs):
    """Runs an initializer on a plain float32 tensor and writes what it leaves."""
    values = dict(kwargs)
    tensor, rest = (args[0], args[1:]) if args else (values.pop("tensor"), ())
    local = dtensors.local_of(tensor)
    plain = torch.empty(local.shape, dtype=torch.float32, device=local.device)
    value = dtensors.like(tensor, plain)
    if func.__name__ == "eye_":  # torch.eye knows no sharding
        first = dtensors.first_element(tensor) // tensor.shape[-1]
        plain.copy_(torch.eye(*tensor.shape)[first : first + len(plain)])
    else:
        func(value, *rest, **values)
    with torch.no_grad():
        tensor.copy_(value)
    return tensor


def _seen(function):
    """An initializer that hands quantized weights, sharded or not, to _initialize."""

    @functools.wraps(function)
    def initializer(*args, **kwargs):
        tensor = args[0] if args else kwargs.get("tensor")
        if isinstance(dtensors.local_of(tensor), QuantizedTensor):
            return _initialize(function, args, kwargs)
        return function(*args, **kwargs)

    return initializer


for _name in ("eye_", "dirac_", "orthogonal_", "sparse_", "trunc_normal_"):
    setattr(nn.init, _name, _seen(getattr(nn.init, _name)))
