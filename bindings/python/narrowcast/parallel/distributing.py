"""distribute_tensor of a quantized weight, and parallelize_module and distribute_module of a model
that is converted already: they cut a weight with torch.chunk, fill up the last parts, scatter them
and register a DTensor in the module.
"""

import weakref

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from narrowcast.fsdp import torch_names
from narrowcast.parallel import cuts, tensor_parallel, written
from narrowcast.tensor import QuantizedTensor, buffers, dtensors
from narrowcast.tensor.dispatch import as_torch_does
from narrowcast.tensor.region import Region, matrix_shape
from narrowcast.tensor.store_copies import copy_region
from narrowcast.tensor.view import View


def parts(weight: QuantizedTensor, count: int, dim: int) -> list[QuantizedTensor]:
    """What ranks get of a weight. ValueError if a cut would divide a block, or a rank had none."""
    store, dim = weight._store, dim % weight.dim()
    name, shape = store.config.name or "a weight", tuple(weight.shape)
    cuts.check_cut(name, store.format, shape, count, dim, is_made=True)
    store.refresh()  # all parts begin with bytes of one amax
    if weight.dim() == 3 and dim == 1:
        found = rows_of_each(weight, count)
    else:
        found = list(as_torch_does(torch.chunk, (weight, count, dim), {}))
    if found[-1].shape != found[0].shape:
        found[-1]._view = Short(*found[-1]._view.placed())
    return found


class Short(View):
    """Of the last part, where that has fewer rows, columns or experts than the others."""

    __slots__ = ()


def rows_of_each(experts: QuantizedTensor, count: int) -> list[QuantizedTensor]:
    """Some rows of each expert: copies, for they do not lie together in the matrix."""
    chunks = (as_torch_does(torch.chunk, (expert, count), {}) for expert in experts.unbind())
    return [torch.stack(rows) for rows in zip(*chunks, strict=True)]


def filled_up(part: QuantizedTensor, shape: tuple[int, ...]) -> QuantizedTensor:
    """The last part with zeros behind it, as large as the others: what is scattered is of one
    size.
    """
    source, region = part._view.store, part._view.region
    store = source.new_empty(*matrix_shape(shape), source.bytes.usages, part.device)
    buffers.fill_with_zeros(store.bytes)
    if store.master is not None:
        store.master.value.zero_()
    copy_region(store, Region(0, region.rows, 0, region.columns), source, region)
    return QuantizedTensor(store, shape, part.dtype)


class Registration:
    """The register_parameter of one converted module, in the place of its class's. torch calls it
    whenever a parameter is set. Deep copies and pickles of the module have one of their own; a
    shallow copy (copy.copy) has the module's, as it has its dict of parameters.
    """

    def __init__(self, module: nn.Module):
        self._module = weakref.ref(module)

    def __call__(self, name: str, param: torch.Tensor | None) -> None:
        module = self._module()
        _take_part(module, name, param)
        type(module).register_parameter(module, name, param)

    def __reduce__(self):
        return Registration, (self._module(),)


def watch_registrations(module: nn.Module) -> None:
    """Has a converted module take a DTensor of a quantized part, as nc.convert takes one."""
    module.__dict__["register_parameter"] = Registration(module)


def _take_part(module: nn.Module, name: str, parameter: torch.Tensor | None) -> None:
    """Does what nc.convert does for DTensors, if a parameter is one of a quantized part.
    NotImplementedError or ValueError as there.
    """
    local = dtensors.local_of(parameter)
    if local is parameter or not isinstance(local, QuantizedTensor):
        return
    # A load that assigns puts a DTensor in the place of one; and fully_shard sees to its own.
    is_in_place = isinstance(module._parameters.get(name), DTensor)
    if is_in_place or torch_names.is_sharding() or torch_names.managed(parameter)[1] is not None:
        return
    local.detach_from_base()  # of what the part was filled up with
    store = local._store
    cuts.check(parameter, store.config.name or name, store.format, [module])
    store.partial = dtensors.is_cut(parameter)
    if isinstance(module, nn.Linear):
        tensor_parallel.adopt(module)
    written.watch(module, name, parameter)
