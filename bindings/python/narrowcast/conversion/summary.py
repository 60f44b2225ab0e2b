"""nc.summary: which parameters of a model are quantized, and the bytes that they take."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence

import torch
from torch import nn

from narrowcast.conversion import selection
from narrowcast.fsdp import first_gather, sharding, torch_names
from narrowcast.master import MasterWeight
from narrowcast.tensor import QuantizedTensor, dtensors

# A table's columns of bytes.
_SIZES = {"stored": "stored", "masters": "masters", "gathered": "gathered a step"}


@dataclasses.dataclass(frozen=True)
class Parameter:
    """A parameter of a model.

    name, shape  the name, and the whole shape
    format       the name of its format; None if it is plain
    reason       why it is plain; None if it is quantized
    trainable    whether it requires a gradient
    stored       bytes of this rank's codes and scales, or values
    masters      bytes of this rank's master beside them
    gathered     bytes of the whole weight that FSDP2's all-gathers carry in a step (a forward and a
                 backward); 0 if it is not sharded
    one_scale    the names of the weights that share one scale, this name too; empty if it shares
                 none
    state        bytes that the optimizer keeps of it on this rank's device
    """

    name: str
    shape: tuple[int, ...]
    format: str | None
    reason: str | None
    trainable: bool
    stored: int
    masters: int
    gathered: int
    one_scale: tuple[str, ...] = ()
    state: int = 0

    @property
    def kept_as(self) -> str:
        """The format, and what else shares the scale: by what differs in the names."""
        if self.format is None:
            return f"plain: {self.reason}"
        names = zip(*(name.split(".") for name in self.one_scale), strict=False)
        differing = ["/".join(parts) for parts in names if len(set(parts)) > 1]
        return ", ".join([self.format, *(f"one scale for {one}" for one in differing[:1])])


@dataclasses.dataclass(frozen=True)
class Summary:
    """The result of nc.summary. str() of it is a table with a line for parameters that are alike.

    parameters        all of them, in the model's order
    quantized, plain  those with a format and those without
    stored, masters, gathered, state
                      the sums of their bytes
    """

    parameters: tuple[Parameter, ...]

    @property
    def quantized(self) -> tuple[Parameter, ...]:
        return tuple(one for one in self.parameters if one.format is not None)

    @property
    def plain(self) -> tuple[Parameter, ...]:
        return tuple(one for one in self.parameters if one.format is None)

    @property
    def stored(self) -> int:
        return sum(one.stored for one in self.parameters)

    @property
    def masters(self) -> int:
        return sum(one.masters for one in self.parameters)

    @property
    def gathered(self) -> int:
        return sum(one.gathered for one in self.parameters)

    @property
    def state(self) -> int:
        return sum(one.state for one in self.parameters)

    def __str__(self) -> str:
        fields = [*_SIZES, *(["state"] if self.state else [])]
        header = "parameter", "", "shape", "kept as", *(_SIZES.get(one, one) for one in fields)
        alike: dict[tuple, list[Parameter]] = {}
        for one in self.parameters:
            pattern = re.sub(r"\b\d+\b", "*", one.name)
            key = pattern, one.shape, one.kept_as, one.trainable
            alike.setdefault(key, []).append(one)
        rows = [_row(*key, same, fields) for key, same in alike.items()]
        elements = [
            sum(math.prod(one.shape) for one in some) for some in (self.quantized, self.parameters)
        ]
        share = f"{elements[0] / max(elements[1], 1):.1%} of the elements quantized"
        sums = [_size(getattr(self, field)) for field in fields]
        return _table([header, *rows, ("all", "", "", share, *sums)], right=4)


def _row(pattern, shape, kept, trainable, same: list[Parameter], fields) -> tuple[str, ...]:
    """A line of the table, for parameters that are alike."""
    name = same[0].name if len(same) == 1 else pattern
    sums = [sum(getattr(one, field) for one in same) for field in fields]
    frozen = "" if trainable else ", frozen"
    count = f"{len(same)} of" if len(same) > 1 else ""
    size = "x".join(map(str, shape)) or "1"
    return name, count, size, kept + frozen, *map(_size, sums)


def summary(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Summary:
    """Which parameters of a model are quantized, why the others are not, and how many bytes each
    one stores on this rank, has as master beside them, and gathers in a step; and with an optimizer
    (any of torch's kind, after its first step) how many of state. Parameters that FSDP2 has
    gathered are resharded first.
    """
    torch_names.reshard_all(model.modules())
    found = selection.places(model).items()
    states = {} if optimizer is None else optimizer.state
    return Summary(
        tuple(_parameter(one, places, _state(one, states.get(one, {}))) for one, places in found)
    )


def _state(parameter: nn.Parameter, state: dict) -> int:
    """Bytes of a parameter's state on its device, without a history, which is the weight's."""
    device = dtensors.local_of(parameter).device
    tensors = [one for key, one in state.items() if key != "history" and torch.is_tensor(one)]
    kept = map(dtensors.local_of, tensors)
    return sum(one.nbytes for one in kept if one.device == device and one.numel() > 1)


def _parameter(parameter: nn.Parameter, places: list[tuple], state: int) -> Parameter:
    local = dtensors.local_of(parameter)
    facts = places[0][0], tuple(parameter.shape)
    gathered = _gathered(*torch_names.managed(parameter))
    masters = 0
    if isinstance(local, MasterWeight):
        store, masters = sharding.store_of_weight(parameter), local.value.nbytes
        local = QuantizedTensor(store, local.shape, local.dtype)
    if not isinstance(local, QuantizedTensor):
        reason = _reason(parameter, places)
        rest = parameter.requires_grad, local.nbytes, 0, gathered
        return Parameter(*facts, None, reason, *rest, state=state)
    group = local._store.config.scale_group
    rest = local.nbytes, masters, gathered, () if group is None else group.present_names()
    return Parameter(*facts, local.format.name, None, parameter.requires_grad, *rest, state)


def _reason(parameter: nn.Parameter, places: list[tuple]) -> str:
    """Why a parameter is plain, as far as the model shows it."""
    if not parameter.is_floating_point():
        return f"{parameter.dtype}"
    if parameter.dim() < 2:
        return "one dimension"
    if len(places) > 1:
        every = (f"{name} ({type(module).__name__})" for name, module, _ in places)
        return f"shared by {' and '.join(every)}"
    (_, module, _), *_ = places
    is_linear = isinstance(module, nn.Linear)
    return "left out" if is_linear else f"of {type(module).__name__}"


def _gathered(group, parameter) -> int:
    """The bytes of a step's gathers of one sharded parameter, both passes together."""
    if parameter is None or torch_names.world(parameter) == 1:
        return 0
    kept, store = torch_names.is_kept(group), sharding.store_of(parameter)
    gathers = 1 if kept else 2
    elements = torch_names.full_shape(parameter).numel()
    if store is None:
        return gathers * elements * torch_names.gathered_dtype(parameter).itemsize
    rowwise, columnwise = store.format.rowwise.wire_bits, store.format.columnwise.wire_bits
    if store.format.columnwise_derived:
        bits = rowwise
    elif kept or first_gather.is_recomputed(group, store):
        bits = rowwise + columnwise
    else:  # FSDP2 fixes a payload's size once: that of the smaller is filled up
        bits = max(rowwise, columnwise)
    return round(gathers * elements * bits / 8)


def _table(rows: Sequence[Sequence[str]], right: int) -> str:
    """Rows in columns two blanks apart: those from number `right` on aligned at their right end."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if index >= right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _size(count: int) -> str:
    """Bytes, such as "1.44 MB"; 0 is "-"."""
    if count == 0:
        return "-"
    amount, units = float(count), ["B", "kB", "MB", "GB", "TB"]
    while amount >= 999.5 and len(units) > 1:
        amount, units = amount / 1000, units[1:]
    return f"{count} B" if units[0] == "B" else f"{amount:.3g} {units[0]}"
