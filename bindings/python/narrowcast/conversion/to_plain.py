"""nc.to_plain: the way back from nc.convert, in place."""

import torch
from torch import nn

from narrowcast.conversion import selection
from narrowcast.conversion.convert import replace
from narrowcast.fsdp import sharding, stale, torch_names
from narrowcast.master import MasterWeight, products
from narrowcast.tensor import QuantizedTensor, dtensors


def to_plain(model: nn.Module, *, values: str = "master") -> nn.Module:
    """Replaces every quantized weight of a model by a plain parameter of the same shape and dtype.
    Works in place and returns the model. Plain parameters stay as they are.

    values  "master": the float32 value, and the decoded value of a frozen weight. "dequantized":
            the value that products read, of every weight

    Works before and after fully_shard, on each rank's shards. After it, "dequantized" is
    collective, as nc.convert is. Parameters that modules share stay shared. Make the optimizer
    anew, because it has the replaced parameters. ValueError for other `values`.
    """
    if values not in ("master", "dequantized"):
        raise ValueError(f'values is "master" or "dequantized", not {values!r}')
    torch_names.reshard_all(model.modules())
    quantized = [
        (parameter, [(module, attribute) for _, module, attribute in places])
        for parameter, places in selection.places(model).items()
        if isinstance(dtensors.local_of(parameter), (QuantizedTensor, MasterWeight))
    ]
    if values == "dequantized":
        weights = ((one, sharding.store_of_weight(one)) for one, _ in quantized)
        stale.cast(stale.shards_of(weights))
    for parameter, places in quantized:
        value = _value_of(dtensors.local_of(parameter), values)
        replace(parameter, places, value, parameter.requires_grad)
    return model


def _value_of(local: QuantizedTensor | MasterWeight, values: str) -> torch.Tensor:
    """Of the logical dtype, in memory of its own or in that of a master that nothing else keeps."""
    if isinstance(local, MasterWeight):
        if values == "master":
            return local.value.detach().to(local.dtype)
        local = products.narrowed(local.detach())
    if values == "master" and (kept := local.kept_value) is not None:  # it was merged into
        return kept.detach().to(local.dtype)
    usages = local._view.usages
    return local.detach().decode(local.dtype, "rowwise" if "rowwise" in usages else usages[0])
