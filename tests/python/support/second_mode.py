"""Today's tests with NARROWCAST_MASTER_WEIGHTS=1 in the environment, outside of CI: what they look
at of a trainable weight, they find on one that is its own master.
"""

import os

import narrowcast as nc
from narrowcast.tensor.region import Region
from narrowcast.tensor.view import View
from narrowcast.tensor.wrapper import QuantizedTensor

BYTES = ("rowwise_data", "rowwise_scale_inv", "columnwise_data", "columnwise_scale_inv")


def _of_bytes(name):
    """What a QuantizedTensor of the same bytes has by a name."""

    def get(weight):
        return getattr(QuantizedTensor(_view(weight), weight.shape, weight.dtype), name)

    return get


def _view(weight):
    """What a weight, or a part of its rows and columns, is of its bytes."""
    view = weight._view
    if view.place is None or view.place[1][-1] != 1:
        return view
    row, column = divmod(view.first, view.store.columns)
    shape = weight.shape
    return View(view.store, Region(row, shape[:-1].numel(), column, shape[-1]))


def install():
    for name in (*BYTES, "amax", "history", "dequantize"):
        setattr(nc.MasterWeight, name, property(_of_bytes(name)))
    nc.MasterWeight.master = property(lambda weight: weight.value)


if os.environ.get("NARROWCAST_MASTER_WEIGHTS", "0") not in ("", "0"):
    install()
