"""Today's tests with NARROWCAST_MASTER_WEIGHTS=1 in the environment, outside of CI: what they look
at of a trainable weight, they find on one that is its own master.

A test of what goes with weights that have masters says so, and is skipped in this mode:

    @pytest.mark.old_way("writes in place are refused")

What is to be deleted with these:  pytest tests/python -m old_way --collect-only -q
"""

import narrowcast as nc
from narrowcast.tensor import dtensors
from narrowcast.tensor.wrapper import QuantizedTensor

IS_ON = True
CONVERTED = (QuantizedTensor, nc.MasterWeight)
BYTES = ("rowwise_data", "rowwise_scale_inv", "columnwise_data", "columnwise_scale_inv")


def master_of(optimizer, parameter):
    """The float32 value that an optimizer trains, in its state or the parameter's own."""
    if (master := optimizer.state[parameter].get("master")) is not None:
        return master
    local = dtensors.local_of(parameter).detach()
    return dtensors.like(parameter, getattr(local, "value", local))


def as_quantized(weight):
    """A QuantizedTensor of a weight's bytes, with the value as its master."""
    if isinstance(weight, nc.MasterWeight):
        return QuantizedTensor(weight._view, weight.shape, weight.dtype)
    return weight


def _of_bytes(name):
    """What a QuantizedTensor of the same bytes has by a name."""

    def get(weight):
        return getattr(as_quantized(weight), name)

    return get


class _Either(type):
    def __instancecheck__(cls, one):
        return isinstance(one, (QuantizedTensor, nc.MasterWeight))


class Quantized(metaclass=_Either):
    """What tests ask for where either kind of weight will do."""


def install():
    for name in (*BYTES, "tensor_amax", "history", "dequantize"):
        setattr(nc.MasterWeight, name, property(_of_bytes(name)))
    nc.MasterWeight.master = property(lambda weight: weight.value)
    nc.QuantizedTensor = Quantized


if IS_ON:
    install()
