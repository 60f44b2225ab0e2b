"""nc.convert: a model's weights become MasterWeights, or QuantizedTensors if frozen, in place."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from narrowcast import ranks, registry
from narrowcast.checkpoint import state_dicts
from narrowcast.conversion import fits, selection, torch_hooks
from narrowcast.conversion.share_scale import ShareScale, groups_of
from narrowcast.fsdp import group as plans
from narrowcast.fsdp import sharding, stale, torch_names
from narrowcast.master import MasterWeight
from narrowcast.master.cell import Cell
from narrowcast.matmul import operators
from narrowcast.parallel import distributing, experts, tensor_parallel, wrappers
from narrowcast.tensor import LOGICAL_DTYPES, QuantizedTensor, dtensors
from narrowcast.tensor.scale_groups import ScaleGroup
from narrowcast.tensor.store import WeightConfig


class Options(NamedTuple):
    """Options of nc.convert. `recompute`: None for "auto"; `groups`: of weights that share a scale,
    by the weights' names; `readers`: of the weights that are their own masters; None: none is;
    `value_dtype`: of these.
    """

    recompute: bool | None
    matmul: str
    trainable: bool | None
    groups: Mapping[str, ScaleGroup] = MappingProxyType({})
    readers: weakref.WeakSet | None = None
    value_dtype: torch.dtype = torch.float32

    def keeps_master(self, weight: nn.Parameter) -> bool:
        return weight.requires_grad if self.trainable is None else self.trainable


def convert(
    model: nn.Module,
    format: str | registry.Format,
    *,
    filter: selection.Filter = selection.default_filter,
    parameters: selection.Parameters = None,
    recompute: bool | str = "auto",
    matmul: str = "dequantized",
    trainable: bool | None = None,
    value_dtype: torch.dtype = torch.float32,
    mesh=None,
    share_scale: ShareScale = None,
) -> nn.Module:
    """Replaces parameters of a model: trained ones by nc.MasterWeights, frozen ones by
    nc.QuantizedTensors. The filter chooses modules, of which `weight` is replaced; of modules
    without `weight`, as experts are, all floating parameters of three dimensions. `parameters`
    chooses more. Works in place and returns the model.

    format      a name (nc.formats()) or nc.format(name)
    filter      a function of a module's name and the module; or a pattern of names as of fnmatch
                ("*.mlp.*"), or a list of patterns, which choose among the modules of the default.
                The default: every nn.Linear that is no router, and the modules with parameters of
                three dimensions that are called experts. None: no module
    parameters  chooses parameters by their own names, in any module: a function of name and
                parameter, or patterns of names ("*.experts.gate_up_proj"), which choose among the
                floating parameters of two and more dimensions
    recompute   True: every gather carries both usages, if the format's columnwise bytes cannot be
                derived (format.gather == "by pass"). "auto": only where the first gather finds
                activation checkpointing. Give True with checkpointing that cannot be seen, an
                explicit unshard() before a backward, set_reshard_after_backward(False), and a
                change of resharding at run time (docs/sharding.md, "A gather")
    matmul      how linear layers multiply. "dequantized": the decoded weight by the input as it is.
                "scaled": bytes by bytes. Input and gradient are cast to the formats that
                format.matmul names, and matrix units multiply them if the machine has such units
                (docs/matmul.md)
    trainable   True: each weight is a tensor over its float32 value, which any optimizer trains.
                False: each weight is bytes alone, without a gradient. None: True for the weights
                that require a gradient, else False
    value_dtype of the weights in training. torch.float32: of the value, and the weight goes on to
                announce the dtype that it had. torch.bfloat16: value, weight and gradient have it,
                of float32 and bfloat16 weights; nc.optim.AdamW keeps eight bits more of each value,
                or rounds it stochastically (docs/optimizers.md, "Values in bfloat16")
    mesh        the DeviceMesh that fully_shard will get, or its number of shards. If it is given, a
                weight that cannot be cut over it is an error here
    share_scale
                of formats where a scale spans the tensor: which weights have one scale together, as
                inference engines want it where they fuse weights. [("q_proj", "k_proj", "v_proj"),
                ("gate_proj", "up_proj")]: the weights of these names below one module. None: these
                and other usual names in modules of transformers and torchtitan; True: in any
                module; False or []: none (docs/conversion.md)

    Weights are float32, bfloat16 or float16, on CPU, CUDA or meta. nc.convert works before and
    after fully_shard; after it, it is collective. A weight that modules share is one parameter. The
    default leaves out a weight that an nn.Linear shares with another module (a tied head), and
    weights that the format cannot hold. It warns if other matrices have a tenth of the elements or
    more; nc.summary lists the converted weights.

    Make the optimizer after nc.convert and fully_shard, because an earlier optimizer has the
    replaced parameters and trains nothing. Gradients and hooks stay with replaced parameters. A
    float32 weight in training takes over the memory of the parameter that it replaces.

    If there is an error, nothing changes. ValueError: nothing is chosen, a pattern chooses nothing,
    a filter divides a shared weight, or the format cannot hold or shard a weight or names no
    formats for scaled products. TypeError: another dtype. NotImplementedError: a DTensor that is
    neither fully_shard's nor cut as docs/sharding.md says. DisagreementError, on every rank: ranks
    convert shards differently.
    """
    format = registry.format(format)
    if recompute not in (True, False, "auto"):
        raise ValueError(f'recompute is True, False or "auto", not {recompute!r}')
    recompute = None if recompute == "auto" else recompute
    if value_dtype not in (torch.float32, torch.bfloat16):
        raise ValueError(f"value_dtype is torch.float32 or torch.bfloat16, not {value_dtype!r}")
    options = Options(recompute, matmul, trainable, {}, weakref.WeakSet(), value_dtype)
    format.check_matmul(matmul)
    wrappers.check_unwrapped(model)
    torch_names.reshard_all(model.modules())
    chosen, by_default = selection.choose(model, filter, parameters)
    weights = fits.storable(chosen, by_default, format)
    _check_all(weights, format)
    _check_values(weights, options)
    fits.foresee(weights, format, mesh)
    groups = groups_of(model, weights, format, share_scale, options.keeps_master)
    _convert(weights, format, options._replace(groups=groups), model)
    operators.register_flops()
    state_dicts.attach(model)
    if filter is selection.default_filter and parameters is None:
        selection.warn_of_left_out(model)
    return model


def convert_layer(module: nn.Module, name: str, format: str, matmul: str) -> None:
    """The same with the parameter `weight` of one module, which no other module shares, under a
    name for messages. Never a MasterWeight: of Megatron's layers, which alone are converted so, the
    masters are Megatron's own flat parameters, a shard of them on each rank. The weights are bytes
    that its step writes, and their first value is what its optimizer begins with.
    """
    format = registry.format(format)
    weights = [(name, module.weight, [(module, "weight")])]
    format.check_matmul(matmul)
    _check_all(weights, format)
    _convert(weights, format, Options(False, matmul, True), module)
    state_dicts.attach(module)


def _check_all(weights: list[selection.Weight], format: registry.Format) -> None:
    for name, weight, places in weights:
        modules = [module for module, _ in places]
        _check(name, weight, format, modules)
        experts.check_blocks(name, weight, modules, format)


def _check_values(weights: list[selection.Weight], options: Options) -> None:
    """TypeError for a weight whose value cannot be bfloat16: a float16 one, whose inputs are that,
    or a shard of float32, which FSDP2 has laid out by then.
    """
    for name, weight, _ in weights:
        if options.value_dtype == torch.float32 or not options.keeps_master(weight):
            continue
        if weight.dtype == torch.float32 and torch_names.managed(weight)[1] is not None:
            raise TypeError(
                f"{name} is a shard of float32, which cannot become bfloat16: call "
                "model.bfloat16(), or nc.convert, before fully_shard"
            )
        if weight.dtype == torch.float16:
            raise TypeError(
                f"{name} is float16, and value_dtype=torch.bfloat16 would make it bfloat16, unlike "
                "its inputs: call model.bfloat16() first, or leave value_dtype out"
            )


def _convert(
    weights: list[selection.Weight], format: registry.Format, options: Options, model: nn.Module
) -> None:
    """Replaces weights of a model, all of which have been checked."""
    torch_hooks.install()
    facts = [
        dtensors.fact(weight, _line(name, weight, format, options)) for name, weight, _ in weights
    ]
    ranks.same("what nc.convert converts", facts)
    quantized = [_to_cast(name, weight, format, options) for name, weight, _ in weights]
    made_now = (
        (weight, tensor._store)
        for (_, weight, _), tensor in zip(weights, quantized, strict=True)
        if isinstance(tensor, QuantizedTensor) or tensor.cell.is_part
    )
    stale.cast(stale.shards_of(made_now))
    for (_, weight, places), tensor in zip(weights, quantized, strict=True):
        for module, _ in places:
            module.register_parameter = distributing.Registration(module, model)
        if not options.keeps_master(weight):
            tensor._store.drop_master()
            tensor._store.leave_group()  # its bytes are not made again
        requires_grad = weight.requires_grad and options.trainable is not False
        is_managed = not replace(weight, places, tensor, requires_grad)
        if not is_managed and isinstance(weight, DTensor):
            for module, _ in places:
                if isinstance(module, nn.Linear):
                    tensor_parallel.adopt(module)
            module, attribute = places[0]
            distributing.watch_writes(model, getattr(module, attribute))
        elif is_managed:
            sharding.store_of_weight(weight)  # it knows that it is a shard
    for group in dict.fromkeys(options.groups.values()):
        group.attach()


def replace(parameter: nn.Parameter, places, local: torch.Tensor, requires_grad: bool) -> bool:
    """Puts another value of this rank's shard in the place of a parameter: within FSDP2's own, or
    in all places that hold it, as modules and names of attributes. Whether it was the latter.
    """
    group, managed = torch_names.managed(parameter)
    if managed is not None:
        parameter.requires_grad_(requires_grad)
        plans.replace_shard(group, managed, local)
        return False
    new = nn.Parameter(dtensors.like(parameter, local), requires_grad=requires_grad)
    is_its_own = isinstance(parameter, MasterWeight)
    new.__dict__.update(parameter.attributes() if is_its_own else parameter.__dict__)
    for module, attribute in places:
        setattr(module, attribute, new)
    return True


def _line(name: str, weight: nn.Parameter, format: registry.Format, options: Options) -> str:
    """What all ranks must have alike of a weight."""
    kept = f", in {options.value_dtype}" if options.keeps_master(weight) else ", without a master"
    if group := options.groups.get(name):
        kept += f", one scale for {' and '.join(group.names)}"
    again = "auto" if options.recompute is None else options.recompute
    return f"{name} in {format.identity} for {options.matmul} products, recompute={again}{kept}"


def _check(name: str, weight: nn.Parameter, format: registry.Format, modules) -> None:
    """All errors that a weight can give, before anything changes; from its global shape, so on
    every rank alike.
    """
    local = dtensors.local_of(weight)
    if isinstance(local, (QuantizedTensor, MasterWeight)):
        raise ValueError(
            f"{name} is quantized already, in {local.format.name}: nc.to_plain(model) first"
        )
    if weight.dtype not in LOGICAL_DTYPES:
        raise TypeError(f"{name} is {weight.dtype}: float32, bfloat16 or float16 can be converted")
    if problem := fits.storage_problem(format, weight.shape):
        raise ValueError(f"{name}: {problem}")
    _, managed = torch_names.managed(weight)
    if managed is not None:
        sharding.check_sharded(managed, name, format)
    elif isinstance(weight, DTensor):
        distributing.check_placements(weight, name, format, modules)


def _to_cast(
    name: str, weight: nn.Parameter, format: registry.Format, options: Options
) -> QuantizedTensor | MasterWeight:
    """A weight in training, or bytes that are still to be made, with the value to cast from."""
    local, group = dtensors.local_of(weight).detach(), options.groups.get(name)
    config = WeightConfig(name, options.recompute, options.matmul, group)
    _, managed = torch_names.managed(weight)
    if options.readers is not None and options.keeps_master(weight):
        dtypes = {"value_dtype": options.value_dtype}
        made = MasterWeight.of(local, format, config, options.readers, **dtypes)
        made.cell.is_part = managed is None and dtensors.is_cut(weight)
        return made
    # A float32 weight's own memory, if it is contiguous; the optimizer updates it. What is let
    # go when the bytes are made need not be float32: a cast takes every logical dtype.
    value = local.resolve_neg().contiguous()
    if options.keeps_master(weight):
        value = value.to(torch.float32)
    cell = Cell(value, format, config)
    if managed is not None:
        like = () if group is None else group.shapes
        cell.become_shard(value, True, sharding.unaligned_shard_of(managed, format, like))
    cell.store.partial = dtensors.is_cut(weight)
    return QuantizedTensor(cell.store, local.shape, weight.dtype)
