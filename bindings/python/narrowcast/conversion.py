"""nc.convert: a model's weights become QuantizedTensors, in place."""

from collections.abc import Callable

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from narrowcast import consensus, registry
from narrowcast.fsdp import agreement, sharding, torch_names
from narrowcast.parallel import cuts, wrappers
from narrowcast.parallel import tensor as tensor_parallel
from narrowcast.tensor import LOGICAL_DTYPES, QuantizedTensor, buffers, casting, dtensors
from narrowcast.tensor.master import Master
from narrowcast.tensor.region import matrix_shape
from narrowcast.tensor.store import Label, Store

_WHOLE_BYTES = 24  # rows of which elements of any size fill whole bytes


def convert(
    model: nn.Module,
    format: str | registry.Format,
    *,
    filter: Callable[[str, nn.Module], bool] = lambda name, module: isinstance(module, nn.Linear),
    recompute: bool = False,
    products: str = "decoded",
) -> nn.Module:
    """Replaces the parameter `weight` of every module that the filter chooses by a QuantizedTensor.
    Works in place and returns the model.

    format     a name (nc.formats()) or nc.format(name)
    filter     called with each module's name and the module
    recompute  every gather carries both usages. Needed with activation checkpointing, an explicit
               unshard() before a backward, set_reshard_after_backward(False) and a change of
               resharding at run time, if the format's columnwise bytes cannot be derived
               (format.gather == "by pass")
    products   of linear layers: "decoded", of the decoded weight and the input as it is; "scaled",
               of the bytes: input and gradient are cast to the formats that format.products names,
               and matrix units multiply them where the machine has some (docs/products.md)

    Each weight keeps its value in float32 beside the bytes: what FusedAdam takes as its master.
    Weights may be float32, bfloat16 or float16, on CPU, CUDA or meta. Works before and after
    fully_shard; then it is collective. Weights that modules share stay shared. Nothing changes if
    there is an error: ValueError if no module is chosen, if a chosen one has no weight, or shares
    it with one that is not chosen, if the format cannot hold or shard it, or if it names no formats
    for scaled products, or such as cannot hold the layer's activations; TypeError for another
    dtype; NotImplementedError for tensor parallelism; RuntimeError, on every rank, if ranks convert
    shards differently.
    """
    format = registry.format(format)
    if not isinstance(model, nn.Module):
        raise TypeError(f"convert takes a torch.nn.Module, not {type(model).__name__}")
    partners = _partners(format, products)
    wrappers.check_unwrapped(model)
    torch_names.reshard_all(model.modules())
    weights = _chosen(model, filter)
    _convert(weights, format, partners, recompute, products)
    tensor_parallel.watch(model, [places[0] for _, _, places in weights])
    return model


def convert_layer(module: nn.Module, name: str, format: str, products: str) -> None:
    """The same with the parameter `weight` of one module, which no other module shares, under a
    name for messages.
    """
    format = registry.format(format)
    weights = [(name, module.weight, [module])]
    _convert(weights, format, _partners(format, products), False, products)


def check_options(format: str, products: str) -> None:
    """ValueError or TypeError unless there is the format, and it has such products."""
    _partners(registry.format(format), products)


def _convert(weights, format: registry.Format, partners, recompute: bool, products: str) -> None:
    """Replaces weights, as _chosen() finds them."""
    for name, weight, places in weights:
        _check(name, weight, format, places)
        _check_activations(name, weight, partners)
    lines = [(weight, f"{name} in {format.identity}") for name, weight, _ in weights]
    consensus.check_shards("what nc.convert converts", lines)
    quantized = [
        _empty_like(weight, format, Label(name, recompute, products)) for name, weight, _ in weights
    ]
    stores = [tensor._store for tensor in quantized]
    agreement.Agreements().make_bytes(
        stores, lambda: [dtensors.shard_group(weight) for _, weight, _ in weights]
    )
    for (_, weight, places), tensor in zip(weights, quantized, strict=True):
        group, managed = torch_names.managed(weight)
        if managed is not None:
            torch_names.replace_shard(group, managed, tensor)
            continue
        tensor = dtensors.like(weight, tensor)
        parameter = nn.Parameter(tensor, requires_grad=weight.requires_grad)
        parameter.__dict__.update(weight.__dict__)
        for module in places:
            module.weight = parameter
            if isinstance(weight, DTensor):
                tensor_parallel.adopt(module)


def _partners(format: registry.Format, products: str) -> tuple[registry.Format, ...]:
    """The formats of inputs and of gradients; none for decoded products. ValueError for an option
    that makes no sense.
    """
    if products not in ("decoded", "scaled"):
        raise ValueError(f'products is "decoded" or "scaled", not {products!r}')
    if products == "decoded":
        return ()
    if format.products is None:
        able = [name for name in registry.formats() if registry.format(name).products]
        raise ValueError(
            f'products="scaled": {format.name} names no formats for activations and gradients. '
            f"Use one that does ({', '.join(able)}), or add [products] to its spec"
        )
    return tuple(map(registry.format, (format.products.input, format.products.gradient)))


def _chosen(model: nn.Module, filter) -> list[tuple[str, nn.Parameter, list[nn.Module]]]:
    """The weights to convert: name, parameter, and the modules that hold it."""
    chosen: dict[int, tuple[str, nn.Parameter, list[nn.Module]]] = {}
    left_out: dict[int, str] = {}  # the names of all other parameters
    for path, module in model.named_modules():
        convertible = filter(path, module)
        if convertible and module._parameters.get("weight") is None:
            raise ValueError(
                f"the filter chooses {path or 'the model'} ({type(module).__name__}), which has "
                "no parameter `weight`"
            )
        for attribute, parameter in module._parameters.items():
            name = f"{path}.{attribute}" if path else attribute
            if convertible and attribute == "weight":
                chosen.setdefault(id(parameter), (name, parameter, []))[2].append(module)
            else:
                left_out.setdefault(id(parameter), name)
    if not chosen:
        raise ValueError(
            "the filter chooses no module of the model, so there is nothing to convert (the "
            "default chooses every nn.Linear)"
        )
    for key, (name, _, _) in chosen.items():
        if key in left_out:
            raise ValueError(
                f"{name} is the same parameter as {left_out[key]}, which the filter leaves out. "
                "Let the filter choose both or neither"
            )
    return list(chosen.values())


def _check(name: str, weight: nn.Parameter, format: registry.Format, places) -> None:
    """All errors that a weight can give, before anything changes; from its global shape, so on
    every rank alike.
    """
    if isinstance(dtensors.local_of(weight), QuantizedTensor):
        raise ValueError(f"{name} is quantized already")
    if weight.dtype not in LOGICAL_DTYPES:
        raise TypeError(f"{name} is {weight.dtype}: float32, bfloat16 or float16 can be converted")
    rows, columns = matrix_shape(weight.shape)
    try:
        for usage in registry.USAGES:
            format.check_holds(usage, rows, columns)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    if weight.is_cuda and not format.cuda:
        raise NotImplementedError(
            f"{name} is on {weight.device}, and {format.name} was built without GPU kernels "
            f"({format.path})"
        )
    _, managed = torch_names.managed(weight)
    if managed is not None:
        sharding.check_sharded(managed, name, format)
    elif isinstance(weight, DTensor):
        cuts.check(weight, name, format, places)


def _check_activations(name: str, weight: nn.Parameter, partners) -> None:
    """ValueError if a layer's input or the gradient of its output could not be cast."""
    try:
        widths = matrix_shape(cuts.part_shape(weight))[::-1]
        for partner, width in zip(partners, widths, strict=False):
            for usage in registry.USAGES:
                partner.check_holds(usage, _WHOLE_BYTES, width)
    except ValueError as error:
        raise ValueError(f"{name}: its input or its gradient cannot be cast: {error}") from None


def _empty_like(weight: nn.Parameter, format: registry.Format, label: Label) -> QuantizedTensor:
    """A tensor with the weight's value as its master and bytes that are still to be made."""
    local = dtensors.local_of(weight).detach()
    rows, columns = matrix_shape(local.shape)
    # FSDP2's own shards have no derived columnwise: see pieces.zeros_like.
    is_managed = torch_names.managed(weight)[1] is not None
    rowwise_alone = is_managed and format.columnwise_derived
    usages = ["rowwise"] if rowwise_alone else registry.USAGES
    # A float32 weight's own memory, if it is contiguous; the optimizer goes on with it.
    value = casting.settled(local).to(torch.float32)
    master = Master(value.reshape(rows, columns).contiguous())
    bytes = buffers.allocate(format, rows, columns, usages, local.device)
    master.stale = True  # the bytes are still to be made
    store = Store(bytes, master, label)
    store.partial = dtensors.shard_group(weight) is not None
    return QuantizedTensor(store, local.shape, weight.dtype)
