"""The weights of a model under the names of a layout, whole, one at a time: nc.export_tensors."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from narrowcast import registry
from narrowcast.flat import empty_shards
from narrowcast.fsdp import torch_names
from narrowcast.parallel import experts
from narrowcast.publishing import encoding
from narrowcast.registry import layouts
from narrowcast.registry.layouts import LAYOUTS, Scheme
from narrowcast.tensor import QuantizedTensor, dtensors

Naming = Callable[[str], str]
Rename = Naming | Mapping[str, str] | None
_WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.")  # in paths of modules, not in state dicts
_E8M0 = "float8_e8m0fnu"
# What transformers makes one parameter of each expert, and files have apart: equal parts of rows.
FUSED = {"gate_up_proj": ("gate_proj", "up_proj")}


class Entry(NamedTuple):
    """A tensor of a model that is published.

    name    in the model's state dict
    tensor  the parameter or buffer, perhaps a shard
    scheme  how the layout stores it; None: as it is
    """

    name: str
    tensor: torch.Tensor
    scheme: Scheme | None

    @property
    def store(self):
        return dtensors.local_of(self.tensor)._store


def export_tensors(
    model: nn.Module,
    layout: str,
    *,
    rename: Rename = None,
    plain_dtype: torch.dtype | None = torch.bfloat16,
    scale_fmt: str | None = None,
) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, tensor) of all that nc.export writes, in one order on all ranks: to hand a model's
    weights to an inference engine. Tensors are whole, on the model's device, and nothing is kept of
    them once the next is asked for.

    layout       one of nc.format(name).layouts, of every quantized weight's format
    rename       names of a state dict to names in the file: a function, or a dict of regular
                 expressions and what takes their place. An expert of a three-dimensional parameter
                 has the name of a layer: experts.w1 is experts.0.w1.weight, experts.1.w1.weight
    plain_dtype  of floating-point weights that are not quantized; None: as they are
    scale_fmt    of "deepseek": "ue8m0" for power-of-two scales of eight bits. By default they are
                 where the scales of any of the model's formats are

    Codes and scales are those that the next forward multiplies. Collective over the ranks that
    share weights. Costs two gathers a quantized weight, one for each other, and a cast of weights
    that were written since the last; with scales of e8m0 a wait for the device. Nothing happens
    before the first tensor is asked for. ValueError then, if the layout does not hold a weight's
    format or shape.
    """
    yield from tensors_of(
        entries_of(model, layout, scale_fmt), layout, renaming(rename), plain_dtype
    )


def tensors_of(entries: list[Entry], layout: str, naming: Naming, plain_dtype):
    """What export_tensors yields of them. ValueError, before that, if two have one name."""
    names = [name for entry in entries for name in names_of(entry, layout, naming)]
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise ValueError(f"two tensors would be named {twice[0]}: rename gives names")
    return _gathered(entries, layout, naming, plain_dtype)


def names_of(entry: Entry, layout: str, naming: Naming) -> list[str]:
    """Of its tensors in the file."""
    if entry.scheme is None:
        return [naming(entry.name)]
    return [name for one in pieces_of(entry, layout, naming) for name in one.names.values()]


def _gathered(entries: list[Entry], layout: str, naming: Naming, plain_dtype):
    empty_shards.cast_all([(one.tensor, one.store) for one in entries if one.scheme is not None])
    for entry in entries:
        if entry.scheme is None:
            yield naming(entry.name), _plain(entry.tensor, plain_dtype)
        else:
            yield from _published(entry, layout, naming)


def entries_of(model: nn.Module, layout: str, scale_fmt: str | None = None) -> list[Entry]:
    """What of a model is published: its parameters, then its buffers, of which a tensor that
    several modules share is one. ValueError for a layout or format that does not fit, and if no
    weight is quantized.
    """
    if layout not in LAYOUTS:
        raise ValueError(f"there is no layout {layout!r}: layouts are {', '.join(LAYOUTS)}")
    if scale_fmt not in (None, "ue8m0"):
        raise ValueError(f'scale_fmt is "ue8m0" or None, not {scale_fmt!r}')
    found = _tensors_of(model)
    formats = {
        name: dtensors.local_of(tensor).format for name, tensor, _ in found if _is_quantized(tensor)
    }
    if not formats:
        raise ValueError(
            "the model has no quantized weight, and a layout is of those: nc.convert() makes them"
        )
    is_ue8m0 = scale_fmt == "ue8m0" or any(one.scale == "e8m0" for one in formats.values())
    entries = []
    for name, tensor, module in found:
        scheme = None
        if name in formats:
            scheme = _scheme_of(name, formats[name], layout)
            if layout == "deepseek" and scheme.scale == "f32" and is_ue8m0:
                scheme = scheme._replace(scales=("scale", _E8M0))
            _check_shape(name, tensor, scheme)
            if getattr(module, "is_transposed", False):  # transformers' word
                raise ValueError(
                    f"{name} is [experts, in, out], and files have scales of elements along `in`: "
                    "a module that keeps [experts, out, in] can be published"
                )
        entries.append(Entry(name, tensor, scheme))
    return entries


def _tensors_of(model: nn.Module) -> list[tuple[str, torch.Tensor, nn.Module]]:
    """In the order of the model's modules, each once, while shards are in their places."""
    torch_names.reshard_all(model.modules())
    found: dict[int, tuple[str, torch.Tensor, nn.Module]] = {}
    for path, module in _modules_of(model):
        kept = {
            k: v for k, v in module._buffers.items() if k not in module._non_persistent_buffers_set
        }
        for name, tensor in [*module._parameters.items(), *kept.items()]:
            if tensor is not None:
                found.setdefault(id(tensor), (f"{path}.{name}".lstrip("."), tensor, module))
    return list(found.values())


def _modules_of(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """With their paths in state dicts."""
    for path, module in model.named_modules():
        for wrapper in _WRAPPERS:
            path = (path + ".").replace(wrapper, "").rstrip(".")
        yield path, module


def plain_layers(model: nn.Module, naming: Naming) -> list[str]:
    """Names in the file of the modules that multiply by a matrix which is not quantized: also
    routers, experts, and a head that shares the embedding's weight.
    """
    names = []
    for path, module in _modules_of(model):
        weights = [module._parameters[one] for one in experts.weights_of(module)]
        is_plain = any(one.dim() > 1 and not _is_quantized(one) for one in weights)
        if is_plain and not isinstance(module, nn.Embedding):
            names.append(naming(f"{path}.weight").removesuffix(".weight"))
    return names


def _is_quantized(tensor: torch.Tensor) -> bool:
    return isinstance(dtensors.local_of(tensor), QuantizedTensor)


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


def _check_shape(name: str, tensor: torch.Tensor, scheme: Scheme) -> None:
    """ValueError where blocks would hold rows of two layers of the file."""
    block = scheme.block_of(dtensors.local_of(tensor).format)
    parts = len(FUSED.get(name.rpartition(".")[-1], "1"))
    if tensor.dim() > 2 and block != "tensor" and tensor.shape[-2] % (parts * block[0]) != 0:
        raise ValueError(
            f"{name} has {tensor.shape[-2]} rows an expert, in {parts} layers, and the layout one "
            f"scale for {block[0]} rows: a multiple of {parts * block[0]} rows can be published"
        )


# ---- names ----


def renaming(rename: Rename) -> Naming:
    """A function from names of a state dict to names in the file. TypeError for what is neither."""
    if rename is None:
        return str
    if isinstance(rename, Mapping):
        return lambda name: _substituted(name, rename)
    if not callable(rename):
        raise TypeError(f"rename is a function or a dict, not {type(rename).__name__}")
    return lambda name: _called(rename, name)


def _called(rename: Naming, name: str) -> str:
    new = rename(name)
    if not isinstance(new, str):
        raise TypeError(f"rename makes {new!r} of {name}: the name in the file was expected")
    return new


def _substituted(name: str, rename: Mapping[str, str]) -> str:
    for pattern, text in rename.items():
        name = re.sub(pattern, text, name)
    return name


class Piece(NamedTuple):
    """What is one layer in a file: a whole weight, or rows of an expert in one of three dimensions.

    names  of its codes, scales and global scale
    begin  its first row, counted over all experts
    rows   how many it has
    """

    names: dict[str, str]
    begin: int
    rows: int


def pieces_of(entry: Entry, layout: str, naming: Naming) -> list[Piece]:
    """In their order in the file: experts are layers of their own, but in gpt-oss."""
    scheme, shape, name = entry.scheme, entry.tensor.shape, entry.name
    if layout == "gpt-oss":
        base = naming(name)
        names = {"codes": f"{base}_{scheme.codes[0]}", "scales": f"{base}_{scheme.scales[0]}"}
        return [Piece(names, 0, shape[:-1].numel())]
    if len(shape) < 3:
        return [Piece(_names(naming(name), scheme), 0, shape[0])]
    path, _, leaf = f".{name.removesuffix('.weight')}".rpartition(".")
    parts = FUSED.get(leaf, (leaf,))
    layers = [f"{path}.{expert}.{part}.weight" for expert in range(shape[0]) for part in parts]
    rows = shape[:-1].numel() // len(layers)
    return [
        Piece(_names(naming(layer.lstrip(".")), scheme), at * rows, rows)
        for at, layer in enumerate(layers)
    ]


def _names(base: str, scheme: Scheme) -> dict[str, str]:
    stem = base.removesuffix(".weight")
    every = {"codes": scheme.codes[0], "scales": scheme.scales[0], "global": scheme.global_scale}
    return {what: f"{stem}.{name}" for what, name in every.items() if name is not None}


def shape_of(entry: Entry, piece: Piece, what: str, layout: str) -> tuple[int, ...]:
    """Of the codes, the scales or the global scale of a piece, as the file has it."""
    scheme, format = entry.scheme, dtensors.local_of(entry.tensor).format
    columns, bits = entry.tensor.shape[-1], format.rowwise.element_bits
    block = scheme.block_of(format)
    if layout == "gpt-oss":
        blocks = (*entry.tensor.shape[:-1], columns // block[1])
        return (*blocks, block[1] * bits // 8) if what == "codes" else blocks
    if what == "codes":
        return piece.rows, columns * bits // 8
    if what == "global" or block == "tensor":
        return scheme.one
    return -(-piece.rows // block[0]), -(-columns // block[1])


# ---- tensors ----


def _plain(tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    value = tensor.detach()
    if dtype is not None and value.is_floating_point():
        value = value.to(dtype)
    return value.full_tensor() if isinstance(value, DTensor) else value


def _published(entry: Entry, layout: str, naming: Naming) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a quantized weight: its codes, its scales, its global scale."""
    tensor, scheme, local = entry.tensor, entry.scheme, dtensors.local_of(entry.tensor)
    format = local.format
    region = local._view.region
    region = region._replace(row=region.row + entry.store.rows_before)
    encoded = encoding.encode(entry.store.bytes, region, scheme)
    block, columns = scheme.block_of(format), tensor.shape[-1]
    codes = _gather(tensor, local, encoded.codes, columns * format.rowwise.element_bits // 8)
    scales = encoded.scales
    if block != "tensor":
        scales = _gather(tensor, local, scales, -(-columns // block[1]))[:: block[0]]
    if format.scale == "e8m0":
        scales = encoding.above_byte_zero(scales, codes, format, block)
    try:
        scales = encoding.scales_as(scales, format, getattr(torch, scheme.scales[1]))
    except ValueError as error:
        raise ValueError(f"{entry.name}: {error}") from None
    parts = {"codes": codes.view(getattr(torch, scheme.codes[1])), "scales": scales}
    parts["global"] = encoded.global_scale
    for piece in pieces_of(entry, layout, naming):
        for what, name in piece.names.items():
            part, each = parts[what], 1 if what == "codes" else block[0]
            if part.dim() < 2:  # the tensor's one scale is every expert's
                part = part.clone()
            else:
                part = part[piece.begin // each : -(-(piece.begin + piece.rows) // each)]
            yield name, part.reshape(shape_of(entry, piece, what, layout))


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
