"""The weights of a model under the names of a layout, whole, one at a time: nc.export_tensors."""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterator

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from narrowcast import ranks, registry
from narrowcast.fsdp import stale, torch_names
from narrowcast.master import MasterWeight
from narrowcast.parallel import experts
from narrowcast.publishing import encoding, names
from narrowcast.publishing.names import Entry, Rename
from narrowcast.registry import layouts
from narrowcast.registry.layouts import LAYOUTS, Scheme
from narrowcast.tensor import QuantizedTensor, dtensors

_WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.")  # in paths of modules, not in state dicts
_E8M0 = "float8_e8m0fnu"
_AUTO = "auto"  # plain_dtype


def export_tensors(
    model: nn.Module,
    layout: str,
    *,
    rename: Rename = None,
    plain_dtype: torch.dtype | str | None = _AUTO,
    scale_fmt: str | None = None,
    copy: bool = True,
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields (name, tensor) for everything that nc.export writes, in the same order on all ranks:
    hands a model's weights to an inference engine. Tensors are whole, and on the model's device.

    layout       a layout of every quantized weight's format (nc.format(name).layouts)
    rename       names to names in the file: a function, or a dict of regular expressions and their
                 replacements. Names are those of the state dict; of a model of transformers those
                 that its save_pretrained writes. An expert of a three-dimensional parameter has the
                 names of a layer: experts.w1 is experts.0.w1.weight, experts.1.w1.weight
    plain_dtype  of floating-point weights that are not quantized. "auto": torch.bfloat16, but
                 float32 for buffers of float32 or more, and for weights that transformers keeps in
                 float32. None: unchanged
    scale_fmt    of the layout "deepseek": "ue8m0" for power-of-two scales of eight bits. None: such
                 scales if any of the model's formats has them
    copy         False: tensors may be the model's memory, which a step or a write changes, for an
                 engine that reads each tensor before it asks for the next

    Codes and scales are those that the next forward multiplies, also after a write between two
    tensors. Collective over the ranks that share weights. The cost: two gathers for each quantized
    weight and one for each other, a pass over the masters with one reduction, and a cast of weights
    that were written since the last. The host waits once, and with e8m0 scales for each weight.
    The work begins with the first tensor. ValueError then, if the layout does not hold a weight's
    format or shape, or if a weight is not finite.
    """
    entries = entries_of(model, layout, scale_fmt, rename, plain_dtype)
    yield from tensors_of(entries, copy)


def tensors_of(entries: list[Entry], copy: bool = False) -> Iterator[tuple[str, torch.Tensor]]:
    """What export_tensors yields of them. ValueError, before that, if two have one name."""
    places, schemes = Counter(), defaultdict(set)
    for entry in entries:
        for slot in entry.slots:
            places.update((name, slot.begin) for name in entry.names_of(slot).values())
            schemes[slot.name].add(entry.scheme)
    if twice := [name for (name, _), count in places.items() if count > 1]:
        raise ValueError(f"two tensors would be named {twice[0]}: rename gives names")
    if mixed := [name for name, kinds in schemes.items() if len(kinds) > 1]:
        raise ValueError(
            f"{mixed[0]} of the file joins tensors that the model has apart, in several formats or "
            "plain: nc.convert all of them to one format, or none"
        )
    return _joined(_gathered(entries, copy))


def _joined(parts) -> Iterator[tuple[str, torch.Tensor]]:
    """Whole tensors of a file, from (name, length, begin, part) along their first dimensions."""
    waiting: dict[str, dict[int, torch.Tensor]] = defaultdict(dict)
    for name, length, begin, part in parts:
        if length is None or length == part.shape[0]:
            yield name, part
            continue
        there = waiting[name]
        there[begin] = part
        if sum(map(len, there.values())) == length:
            yield name, torch.cat([there[begin] for begin in sorted(there)])
            del waiting[name]


def _gathered(entries: list[Entry], copy: bool):
    quantized = [one for one in entries if one.scheme is not None]
    weights = [(one.tensor, one.store) for one in quantized]
    _check_finite(quantized)
    stale.cast(stale.shards_of(weights))
    sharing = defaultdict(list)  # one scale
    for weight in weights:
        sharing[weight[1].config.scale_group or weight[1]].append(weight)
    for entry in entries:
        if entry.scheme is None:
            yield from _plain(entry, copy)
        else:
            # Written since the last: what was written is what the next forward casts.
            beside = sharing[entry.store.config.scale_group or entry.store]
            stale.cast(stale.shards_of(beside))
            yield from _published(entry, copy)


def _check_finite(entries: list[Entry]) -> None:
    """ValueError on all ranks that share a weight which is not finite on one."""
    groups: dict = defaultdict(list)
    for entry in entries:
        groups[dtensors.shard_group(entry.tensor), gather_device(entry.tensor)].append(entry)
    for (group, device), some in groups.items():
        finite = torch.stack([_largest(one.store) for one in some]).isfinite().tolist()
        bad = next((one.name for one, is_so in zip(some, finite, strict=True) if not is_so), None)
        for name in filter(None, ranks.gather_objects(bad, group, device)):
            raise ValueError(
                f"{name} has an infinity or a NaN: a model of finite weights is published"
            )


def _largest(store) -> torch.Tensor:
    """Not finite if a value is not: of a weight without a master, where its format keeps that."""
    value = store.bytes.amax if store.master is None else store.master
    if value is None or value.numel() == 0:
        return torch.zeros((), device=store.bytes.device)
    return torch.stack(value.aminmax()).abs().amax()


def entries_of(
    model: nn.Module,
    layout: str,
    scale_fmt: str | None = None,
    rename: Rename = None,
    plain_dtype: torch.dtype | str | None = _AUTO,
) -> list[Entry]:
    """What of a model is published: its parameters, then its buffers, of which a tensor that
    several modules share is one. ValueError for a layout or format that does not fit, and if no
    weight is quantized.
    """
    if layout not in LAYOUTS:
        raise ValueError(f"there is no layout {layout!r}: layouts are {', '.join(LAYOUTS)}")
    if scale_fmt not in (None, "ue8m0"):
        raise ValueError(f'scale_fmt is "ue8m0" or None, not {scale_fmt!r}')
    if not (plain_dtype in (None, _AUTO) or isinstance(plain_dtype, torch.dtype)):
        raise ValueError(f'plain_dtype is a torch.dtype, None or "auto", not {plain_dtype!r}')
    model, naming = getattr(model, "_orig_mod", model), names.renaming(rename)
    found = _tensors_of(model)
    local = {name: dtensors.local_of(tensor) for name, (tensor, _) in found.items()}
    kinds = QuantizedTensor, MasterWeight
    formats = {k: one.format for k, one in local.items() if isinstance(one, kinds)}
    if not formats:
        raise ValueError(
            "the model has no quantized weight, and a layout is of those: nc.convert() makes them"
        )
    slots = names.slots_of(model, {name: one.shape for name, (one, _) in found.items()})
    is_ue8m0 = scale_fmt == "ue8m0" or any(one.scale == "e8m0" for one in formats.values())
    entries, seen = [], set()
    for name, (tensor, module) in found.items():
        if id(tensor) in seen or name in (getattr(model, "_keys_to_ignore_on_save", None) or ()):
            continue
        seen.add(id(tensor))
        own, format = slots[name], formats.get(name)
        layers, scheme = own, format and _scheme_of(name, format, layout)
        if scheme is not None and layout == "deepseek" and scheme.scale == "f32" and is_ue8m0:
            scheme = scheme._replace(scales=("scale", _E8M0))
        if [len(one.shape) for one in own] == [3]:
            try:
                layers = names.layers_of(own[0], name, module, model, layout)
            except ValueError:
                if scheme is not None:
                    raise
        own, layers = (
            [slot._replace(name=naming(slot.name)) for slot in some] for some in (own, layers)
        )
        dtype = _dtype_in_file(name, tensor, module, model, plain_dtype)
        own = own if scheme is None else layers
        entry = Entry(name, tensor, layout, scheme, own, dtype, format, layers)
        for slot in layers if scheme is not None else ():
            entry.region_of(slot)
        entries.append(entry)
    return entries


def _dtype_in_file(name: str, tensor, module, model, plain_dtype) -> torch.dtype | None:
    if not tensor.is_floating_point() or plain_dtype != _AUTO:
        return plain_dtype if tensor.is_floating_point() else None
    kept = getattr(model, "_keep_in_fp32_modules_strict", None) or ()
    is_kept = any(re.search(one.replace("*", ".*"), name) for one in kept)
    is_wide = tensor.dtype.itemsize >= 4 and name.rpartition(".")[-1] in module._buffers
    return torch.float32 if is_kept or is_wide else torch.bfloat16


def _tensors_of(model: nn.Module) -> dict[str, tuple[torch.Tensor, nn.Module]]:
    """By their names, in the order of the model's modules, while shards are in their places; what
    several modules share under each of its names.
    """
    torch_names.reshard_all(model.modules())
    found: dict[str, tuple[torch.Tensor, nn.Module]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        for wrapper in _WRAPPERS:
            path = (path + ".").replace(wrapper, "").rstrip(".")
        left_out = module._non_persistent_buffers_set
        for name, tensor in [*module._parameters.items(), *module._buffers.items()]:
            if tensor is not None and name not in left_out:
                found[f"{path}.{name}".lstrip(".")] = tensor, module
    return found


def plain_layers(model: nn.Module, rename: Rename) -> list[str]:
    """Names in the file of the modules that multiply by a matrix which is not quantized: also
    routers, experts, and a head that shares the embedding's weight.
    """
    model, naming = getattr(model, "_orig_mod", model), names.renaming(rename)
    found = _tensors_of(model)
    slots = names.slots_of(model, {name: one.shape for name, (one, _) in found.items()})
    layers: dict[str, list] = defaultdict(list)
    for name, (tensor, module) in found.items():
        path, _, leaf = name.rpartition(".")
        is_plain = not isinstance(dtensors.local_of(tensor), (QuantizedTensor, MasterWeight))
        is_matrix = tensor.dim() > 1 and leaf in experts.weights_of(module)
        if is_plain and is_matrix and not isinstance(module, nn.Embedding):
            layers[path] += [naming(slot.name).split(".") for slot in slots[name]]
    made = []
    for there in layers.values():
        alike = itertools.takewhile(lambda parts: len({*parts}) == 1, zip(*there, strict=False))
        made.append(".".join(parts[0] for parts in alike).removesuffix(".weight"))
    return [*dict.fromkeys(made)]


def _scheme_of(name: str, format: registry.Format, layout: str) -> Scheme:
    scheme = layouts.scheme_of(format, layout)
    if scheme is None:
        theirs = [one for one in map(registry.format, registry.formats()) if layout in one.layouts]
        has = f"has {', '.join(format.layouts)}" if format.layouts else "has none"
        raise ValueError(
            f"{name}: layout {layout!r} does not hold weights in {format.name}, which {has}. "
            f"Formats of this layout are {', '.join(one.name for one in theirs)}"
        )
    return scheme


# ---- tensors ----


def _copied(tensor: torch.Tensor, memory: list[torch.Tensor | None]) -> torch.Tensor:
    """A copy, if the tensor lies in that memory."""
    own = {one.untyped_storage().data_ptr() for one in memory if one is not None}
    return tensor.clone() if tensor.untyped_storage().data_ptr() in own else tensor


def _plain(entry: Entry, copy: bool):
    value = entry.tensor.detach()
    value = value.to(gather_device(value), entry.dtype or value.dtype)
    value = value.full_tensor() if isinstance(value, DTensor) else value
    if copy:
        value = _copied(value, [dtensors.local_of(entry.tensor)])
    for slot in entry.slots:
        length = slot.shape[0] if slot.shape else None
        yield slot.name, length, slot.begin, slot.view(value.contiguous()).contiguous()


def _published(entry: Entry, copy: bool):
    """The tensors of a quantized weight: its codes, its scales, its global scale. All are read
    before the first is yielded, because a write may follow that.
    """
    tensor, scheme, format = entry.tensor, entry.scheme, entry.format
    store, local = entry.store, dtensors.local_of(tensor)
    bits, block = scheme.bits, entry.block
    place, columns = local._view.region, tensor.shape[-1]
    place = place._replace(row=place.row + store.rows_before)
    encoded = encoding.encode(store.bytes, place, scheme)
    codes, scales = _gather(tensor, local, encoded.codes, columns * bits // 8), encoded.scales
    if block != "tensor":
        scales = _gather(tensor, local, scales, -(-columns // block[1]))[:: block[0]]
    if format.scale == "e8m0":
        scales = encoding.above_byte_zero(scales, codes, format, block)
    try:
        scales = encoding.scales_as(scales, format, getattr(torch, scheme.scales[1]))
    except ValueError as error:
        raise ValueError(f"{entry.name}: {error}") from None
    if copy:
        codes, scales = (_copied(one, store.bytes.buffers) for one in (codes, scales))
    parts = {"codes": codes.view(getattr(torch, scheme.codes[1])), "scales": scales}
    parts["global"] = encoded.global_scale
    for slot in entry.slots:
        place, is_exchanged = entry.region_of(slot)
        for what, name in entry.names_of(slot).items():
            part, shape = parts[what], entry.shape_of(what, slot.size)
            if part.dim() < 2:  # the tensor's one scale is every layer's
                yield name, None, 0, part.clone().reshape(shape)
                continue
            rows = range(place.row, place.row_end)
            columns = range(place.column, place.column_end)
            if what == "codes":
                part = part[rows.start : rows.stop, encoding.bytes_of(columns, 0, bits)]
            else:
                part = part[encoding.blocks_of(rows, 0, block[0])]
                part = part[:, encoding.blocks_of(columns, 0, block[1])]
            if is_exchanged:
                part = part.t().clone(memory_format=torch.contiguous_format)
            length = entry.shape_of(what, slot.shape)[0]
            each = 1 if what == "codes" or len(slot.shape) > 2 else block[0]
            yield name, length, slot.begin // each, part.reshape(shape).contiguous()


def gather_device(tensor: torch.Tensor) -> torch.device:
    """Where ranks exchange it: with CPUOffloadPolicy shards lie elsewhere."""
    if isinstance(tensor, DTensor):
        return torch.device(tensor.device_mesh.device_type)
    return tensor.device


def _gather(tensor: torch.Tensor, local: torch.Tensor, rows: torch.Tensor, width: int):
    """What all ranks together have of [rows, some of a row] of this rank: [all rows, width]."""
    if not isinstance(tensor, DTensor):
        return rows
    part = rows.reshape(*local.shape[:-1], rows.shape[-1])
    mesh, shape = tensor.device_mesh, torch.Size((*tensor.shape[:-1], width))
    part = part.contiguous().to(gather_device(tensor))
    sizes = {"shape": shape, "stride": torch.empty(shape, device="meta").stride()}
    whole = DTensor.from_local(part, mesh, tensor.placements, run_check=False, **sizes)
    return whole.full_tensor().flatten(0, -2)
