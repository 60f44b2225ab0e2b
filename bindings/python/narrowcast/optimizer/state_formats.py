"""An optimizer's state in a state format: its tensors, and its conversion when a state dict is
loaded that has another one. A tensor's name has the format's name in it, so that codes of a
checkpoint are never read as numbers, or as those of another format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from narrowcast import registry
from narrowcast.flat.fusing import index_in
from narrowcast.optimizer import options
from narrowcast.registry import StateFormat
from narrowcast.tensor import dtensors
from narrowcast.tensor.dtensors import DTensor

if TYPE_CHECKING:
    from narrowcast.optimizer import FusedOptimizer
    from narrowcast.optimizer.parameters import Entry


def names_of(format: StateFormat, state: str) -> tuple[str, str]:
    """What codes and scales of a state are called."""
    return f"{state}_{format.name}", f"{state}_{format.name}_scale"


def format_of(optimizer: FusedOptimizer, parameter: torch.Tensor) -> StateFormat | None:
    """The format that a parameter's state has; None if it is numbers. That depends on the whole
    parameter's shape, never on how it is cut. NotImplementedError if a cut divides blocks.
    """
    format = options.state_format_of(optimizer)
    if format is None:
        return None
    if index_in(optimizer.flat_updates, parameter) is not None:
        raise NotImplementedError(
            f"state_dtype={format.name!r} of flat shards, which end within a row, and its blocks "
            "lie along rows: use torch.float32 or torch.bfloat16"
        )
    if not format.holds(parameter.shape):
        return None
    for shape in dtensors.parts_of(parameter).shapes:
        if shape[-1] != parameter.shape[-1] and shape[-1] % format.block != 0:
            raise NotImplementedError(
                f"a parameter of shape {tuple(parameter.shape)} is cut into parts of "
                f"{shape[-1]} columns, which divides blocks of {format.block}: its state cannot be "
                f"kept in {format.name}. Use state_dtype=torch.float32 or torch.bfloat16"
            )
    return format


def zeros(format: StateFormat, state: str, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
    """A state of zeros."""
    local = dtensors.local_of(parameter)
    codes = torch.zeros(local.shape, dtype=torch.uint8, device=local.device)
    scales = torch.zeros(format.scale_shape(local.shape), device=local.device)
    return _entries(format, state, parameter, codes, scales)


def _entries(format, state, parameter, codes, scales) -> dict[str, torch.Tensor]:
    shape = format.scale_shape(parameter.shape)
    tensors = dtensors.like(parameter, codes), dtensors.like(parameter, scales, shape)
    return dict(zip(names_of(format, state), tensors, strict=True))


@torch.no_grad()
def converted(present: dict, saved: dict, entry: Entry) -> dict:
    """A parameter's saved state with the names that its present one has: numbers and the codes of
    formats become each other. What fits as it is, and what fits not at all, stays.
    """
    _, states, nonnegative = options.rule_facts(entry.rule)
    formats = [registry.state_format(name) for name in registry.state_formats()]
    for state, is_nonnegative in zip(states, nonnegative, strict=False):
        stored = [one for one in formats if _has(saved, one, state)]
        wanted = [one for one in formats if _has(present, one, state)]
        if stored == wanted or (not stored and state not in saved):
            continue
        like = entry.parameter
        if stored:
            codes, scales = (_local(saved[name], like) for name in names_of(stored[0], state))
            values = stored[0].decode(codes, scales, is_nonnegative)
        else:
            values = _local(saved[state], like).to(torch.float32)
        if values.shape != dtensors.local_of(like).shape:
            continue
        if wanted:
            made = wanted[0].encode(values, is_nonnegative)
            saved = saved | _entries(wanted[0], state, like, *made)
        else:
            saved = saved | {state: dtensors.like(like, values)}
    return saved


def _has(entries: dict, format: StateFormat, state: str) -> bool:
    """Whether codes and scales of a state are there, of shapes that belong together."""
    codes, scales = (entries.get(name) for name in names_of(format, state))
    if codes is None or scales is None or codes.dim() == 0:
        return False
    return tuple(scales.shape) == format.scale_shape(tuple(codes.shape))


def _local(saved: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """This rank's part of a saved tensor, distributed as a parameter is."""
    if isinstance(saved, DTensor) and isinstance(like, DTensor):
        saved = saved.redistribute(placements=like.placements)
    return dtensors.local_of(saved)
