"""The buffers of a matrix as tensors: room for them, and some of their entries."""

from __future__ import annotations

import torch

from narrowcast.registry import BUFFERS, Format, buffers_of


def corner(shape) -> tuple[slice, ...]:
    """The index of the first entries along each dimension."""
    return tuple(slice(n) for n in shape)


def allocate(format: Format, rows: int, columns: int, usages, device) -> list[torch.Tensor | None]:
    """Room for some usages: undefined bytes, and the zeros that pad scales, which no kernel writes.
    ValueError if the format cannot hold the matrix.
    """
    buffers: list[torch.Tensor | None] = [None] * len(BUFFERS)
    for usage in usages:
        format.check_holds(usage, rows, columns)
        for buffer in buffers_of(usage):
            shape = format.buffer_shape(buffer, rows, columns)
            padded = shape != format.used_shape(buffer, rows, columns)
            make = torch.zeros if padded else torch.empty
            buffers[buffer] = make(shape, dtype=format.buffer_dtype(buffer), device=device)
    return buffers


def fill_with_zeros(format: Format, rows: int, columns: int, buffers) -> None:
    """The bytes of a matrix of zeros: a float32 scale of zeros is 1, and only padding is 0."""
    for buffer, tensor in enumerate(buffers):
        if tensor is None:
            continue
        tensor.zero_()
        if tensor.dtype == torch.float32:
            tensor[corner(format.used_shape(buffer, rows, columns))] = 1.0


def narrowed(tensor: torch.Tensor, stored_box) -> torch.Tensor:
    """Some entries along each dimension (first and number): a view that writes through."""
    for dimension, (first, count) in enumerate(stored_box):
        tensor = tensor.narrow(dimension, first, count)
    return tensor


def padded(view: torch.Tensor, shape, used) -> torch.Tensor:
    """A view as a buffer of this shape: itself if it is one, else a copy of its first entries
    (`used`) with zero padding.
    """
    if view.shape == shape and view.is_contiguous():
        return view
    copy = view.new_zeros(shape)
    copy[corner(used)] = view[corner(used)]
    return copy
