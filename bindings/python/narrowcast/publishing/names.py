"""Which tensors of a file hold a model's tensor, and where.

A model of transformers has other names in files than in memory, experts apart, and some matrices
joined. Its own save_pretrained takes tensors there; here it takes tensors of meta there, and the
views that come out say where each element is.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.utils._python_dispatch import TorchDispatchMode

from narrowcast.fsdp import sharding
from narrowcast.registry import Format
from narrowcast.registry.layouts import Scheme
from narrowcast.tensor import region
from narrowcast.tensor.region import Region

Naming = Callable[[str], str]
Rename = Naming | Mapping[str, str] | None
Shapes = dict[str, torch.Size]  # of a model's tensors, by their names in its state dict

# What transformers makes one parameter of each expert, and files have apart: equal parts of rows.
FUSED = {"gate_up_proj": ("gate_proj", "up_proj")}
_LAST = ("down_proj", "w2")  # of an expert's layers: its output is as wide as the model


class Slot(NamedTuple):
    """Elements of a tensor of the model that a tensor of the file has.

    name    of the file's tensor, as it is called if it is plain
    shape   of the file's tensor
    begin   its first index along the first dimension that they are at
    size, stride, offset
            of the elements, over the tensor of the model: a view, as torch has them
    """

    name: str
    shape: tuple[int, ...]
    begin: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @staticmethod
    def of(view: torch.Tensor, name: str, shape=None, begin: int = 0) -> Slot:
        size = tuple(view.shape)
        return Slot(name, tuple(shape or size), begin, size, view.stride(), view.storage_offset())

    @property
    def end(self) -> int:
        return self.begin + (self.size[0] if self.size else 1)

    def view(self, whole: torch.Tensor) -> torch.Tensor:
        """The elements, of a contiguous tensor of the model's shape."""
        return whole.as_strided(self.size, self.stride, self.offset)


def renaming(rename: Rename) -> Naming:
    """A function from names to names in the file. TypeError for what is neither."""
    if rename is None:
        return str
    if not isinstance(rename, Mapping) and not callable(rename):
        raise TypeError(f"rename is a function or a dict, not {type(rename).__name__}")

    def renamed(name: str) -> str:
        if isinstance(rename, Mapping):
            made = name
            for pattern, text in rename.items():
                made = re.sub(pattern, text, made)
        else:
            made = rename(name)
        if not isinstance(made, str):
            raise TypeError(f"rename makes {made!r} of {name}: the name in the file was expected")
        return made

    return renamed


# ---- as transformers saves ----

_known: WeakKeyDictionary[nn.Module, tuple[Shapes, dict[str, list[Slot]]]] = WeakKeyDictionary()


def slots_of(model: nn.Module, shapes: Shapes) -> dict[str, list[Slot]]:
    """Where save_pretrained has each tensor of a model of transformers; those of others are where
    they are. ValueError for a tensor that is neither parts of the model's nor such parts joined.
    """
    known = _known.get(model)
    if known is None or known[0] != shapes:
        known = _known[model] = shapes, _slots_of(model, shapes)
    return known[1]


def _slots_of(model: nn.Module, shapes: Shapes) -> dict[str, list[Slot]]:
    tensors = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    owners = {one.untyped_storage()._cdata: name for name, one in tensors.items()}
    views, slots = _Views(), {name: [] for name in tensors}
    with torch.no_grad(), views:
        saved = _as_saved(model, dict(tensors))
    for name, made in saved.items():
        begin = 0
        for part in views.parts_of(made):
            owner = owners.get(part.untyped_storage()._cdata)
            if owner is None:
                raise ValueError(
                    f"save_pretrained computes {name} of {type(model).__name__} in a way that "
                    "codes and scales cannot follow: parts of tensors, and parts joined along "
                    "their first dimension, can be published"
                )
            slots[owner].append(Slot.of(part, name, made.shape, begin))
            begin = slots[owner][-1].end
    return slots


def _as_saved(model: nn.Module, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    library = sys.modules.get("transformers")  # of whose models there is none without it
    conversion = sys.modules.get("transformers.core_model_loading")  # since transformers 5
    if conversion is None or not isinstance(model, library.PreTrainedModel):
        return tensors
    if any(isinstance(one, FSDPModule) for one in model.modules()):
        # It looks names of classes up, where FSDP2 has put others in their places.
        kind = next(one for one in type(model).__mro__ if not issubclass(one, FSDPModule))
        conversions = vars(model).get("_weight_conversions")
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            model = kind(model.config)
        model._weight_conversions = conversions
    return conversion.revert_weight_conversion(model, tensors)


class _Views(TorchDispatchMode):
    """Copies are left out, so that what is made of a tensor is a view of it; joins are noted."""

    def __init__(self):
        super().__init__()
        self._joined: dict[int, tuple[torch.Tensor, list[torch.Tensor], int]] = {}

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        if operator is torch.ops.aten.clone.default:
            return torch.ops.aten.alias.default(args[0])
        made = operator(*args, **(kwargs or {}))
        if operator is torch.ops.aten.cat.default:
            parts, dimension = (*args, 0)[:2]
            self._joined[made.untyped_storage()._cdata] = made, parts, dimension
        return made

    def parts_of(self, made: torch.Tensor) -> list[torch.Tensor]:
        joined, parts, dimension = self._joined.get(
            made.untyped_storage()._cdata, (made, [made], 0)
        )
        return parts if dimension == 0 and joined.shape == made.shape else [made]


# ---- as a layout stores ----


class Entry(NamedTuple):
    """A tensor of a model that is published.

    name    in the model's state dict
    tensor  the parameter or buffer, perhaps a shard
    layout  of the file
    scheme  how the layout stores it; None: as it is
    slots   where it is in the file
    dtype   in the file, if it is stored as it is; None: its own
    format  of its bytes, if it is quantized
    layers  where it is, or would be, if it is quantized
    """

    name: str
    tensor: torch.Tensor
    layout: str
    scheme: Scheme | None
    slots: list[Slot]
    dtype: torch.dtype | None
    format: Format | None
    layers: list[Slot]

    @property
    def store(self):
        return sharding.store_of_weight(self.tensor)

    @property
    def block(self) -> tuple[int, int] | str:
        """Of a scale in the file."""
        return self.scheme.block_of(self.format)

    @property
    def names(self) -> list[str]:
        return [name for slot in self.slots for name in self.names_of(slot).values()]

    def names_of(self, slot: Slot) -> dict[str, str]:
        """Of what a slot has: the codes, the scales and the global scale, or the value."""
        scheme = self.scheme
        if scheme is None:
            return {"value": slot.name}
        if self.layout == "gpt-oss":
            return {one: f"{slot.name}_{getattr(scheme, one)[0]}" for one in ("codes", "scales")}
        every = {"codes": scheme.codes[0], "scales": scheme.scales[0]}
        if scheme.global_scale is not None:
            every["global"] = scheme.global_scale
        stem = f".{slot.name}".removesuffix(".weight")
        return {what: f"{stem}.{name}".lstrip(".") for what, name in every.items()}

    def shape_of(self, what: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Of the codes, the scales or the global scale of elements of a shape."""
        block, (*_, rows, columns), bits = self.block, (1, *shape), self.scheme.bits
        if self.layout == "gpt-oss":
            blocks = (*shape[:-1], columns // block[1])
            return (*blocks, block[1] * bits // 8) if what == "codes" else blocks
        if what == "codes":
            return *shape[:-1], columns * bits // 8
        if what == "global" or block == "tensor":
            return self.scheme.one
        return *shape[:-2], -(-rows // block[0]), -(-columns // block[1])

    def region_of(self, slot: Slot) -> tuple[Region, bool]:
        """The rows and columns of the matrix that are in a slot, and whether the file has them
        exchanged. ValueError if codes and scales cannot be taken apart there.
        """
        rows, columns = region.matrix_shape(self.tensor.shape)
        found = region.find(slot.size, slot.stride, slot.offset, rows, columns)
        block, width = self.block, slot.size[-1]
        is_square = self.scheme.bits == 8 and (block == "tensor" or block[0] == block[1])
        why = None
        if found is None:
            why = "takes its elements in another order"
        elif found[1] and not is_square:
            why = (
                "has rows and columns exchanged, as it is [experts, in, out], and scales lie along "
                "`in`: a module that keeps [experts, out, in] can be published"
            )
        elif (block == "tensor" or self.scheme.global_scale) and slot.size[0] != slot.shape[0]:
            why = f"has other weights beside it, and {self.format.name} one scale for each"
        elif self.layout == "gpt-oss" and width % block[1] != 0:
            why = f"has rows of {width} elements, and the layout rows of a multiple of {block[1]}"
        elif block != "tensor":
            place, is_stack = found[0], len(slot.shape) > 2
            bounds = [
                (place.row, place.row_end, rows, block[0]),
                (place.column, place.column_end, columns, block[1]),
                (slot.begin, slot.end, slot.shape[0], 1 if is_stack else block[0]),
            ]
            if is_stack:
                bounds.append((0, slot.shape[-2], region.matrix_shape(slot.shape)[0], block[0]))
            for begin, end, all, step in bounds:
                if begin % step or (end % step and end != all):
                    why = f"begins or ends within a block of {step}, which has one scale"
        if why is not None:
            raise ValueError(f"{self.name}: the tensor {slot.name} of the file {why}")
        return found


# ---- experts ----


def layers_of(
    stack: Slot, name: str, module: nn.Module, model: nn.Module, layout: str
) -> list[Slot]:
    """Where experts in one tensor are if they are quantized: each is layers of its own, but in
    gpt-oss, and where their tensor has a layer's name. ValueError if they are not rows of layers.
    """
    if stack.name.endswith(".weight"):
        return [stack]
    path, _, leaf = f".{stack.name}".rpartition(".")
    parts, whole = FUSED.get(leaf, (leaf,)), torch.empty(stack.shape, device="meta")
    is_exchanged = is_transposed(name, stack.shape, module, model)
    if layout == "gpt-oss":
        if is_exchanged:
            raise ValueError(
                f"{name} is [experts, in, out], and files have scales of elements along `in`: a "
                "module that keeps [experts, out, in] can be published"
            )
        return [stack]
    if len(parts) > 1 and not getattr(module, "is_concatenated", True):
        raise ValueError(f'{name} has rows of gate and up in turn: layout="gpt-oss" has that')
    whole = whole.transpose(1, 2) if is_exchanged else whole
    return [
        Slot.of(layer, f"{path}.{expert}.{part}.weight".lstrip("."))
        for expert, matrix in enumerate(whole)
        for part, layer in zip(parts, matrix.chunk(len(parts)), strict=True)
    ]


def is_transposed(name: str, shape, module: nn.Module, model: nn.Module) -> bool:
    """Whether experts are [experts, in, out]: as their class says, or by their partner's shape, or
    by the width of the model. ValueError if they fit neither order.
    """
    if (known := getattr(module, "is_transposed", None)) is not None:  # transformers' word
        return known
    own, leaf = module._parameters, name.rpartition(".")[-1]
    first, last = own.get("gate_up_proj"), own.get("down_proj")
    if leaf in ("gate_up_proj", "down_proj") and first is not None and last is not None:
        shapes = f"gate_up_proj is {list(first.shape)}, and down_proj {list(last.shape)}"
        (rows, columns), (below, across) = first.shape[-2:], last.shape[-2:]
        straight = (rows, columns) == (2 * across, below)
        exchanged = (columns, rows) == (2 * below, across)
    else:
        config = getattr(model, "config", None)
        config = config.get_text_config() if hasattr(config, "get_text_config") else config
        width, (rows, columns) = getattr(config, "hidden_size", None), shape[-2:]
        outer, inner = (columns, rows) if leaf in _LAST else (rows, columns)
        shapes = f"it is {list(shape)}, and the model is {width} wide"
        straight, exchanged = width in (None, inner), outer == width
    if not straight and not exchanged:
        raise ValueError(
            f"{name}: neither [experts, out, in] nor [experts, in, out] by its shape: {shapes}"
        )
    return not straight
