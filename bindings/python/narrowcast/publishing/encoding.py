"""The rowwise bytes of a matrix as the tensors of a published file, and back, to the byte.

In between scales have a row for each row of the matrix, so that shards of any rows fit together.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F

from narrowcast._C import Buffers
from narrowcast.registry import Format
from narrowcast.registry.layouts import Scheme
from narrowcast.tensor import buffers
from narrowcast.tensor.region import Region

LARGEST = {"e2m1": 6.0, "e4m3": 448.0}  # values of element types
_CODES, _SCALES = 0, 1  # rowwise buffers
_MANTISSA, _EXPONENT_AT, _INFINITY = 0x7FFFFF, 23, 0x7F800000  # of a float32
_SMALLEST_E8M0 = 0x00400000  # the float32 2^-127, which is byte 0
_NAN_E8M0 = 255
# Masks of bytes that leave codes without their signs, by bits of a code.
_MAGNITUDES = {4: [0x77], 6: [0xDF, 0xF7, 0x7D], 8: [0x7F]}


class Encoded(NamedTuple):
    """codes         uint8 [rows, bytes of a row]
    scales        [rows, blocks of a row], those of each row; [1] if one scale is the tensor's
    global_scale  float32 [], above the scales; None without
    """

    codes: torch.Tensor
    scales: torch.Tensor
    global_scale: torch.Tensor | None


def encode(bytes: Buffers, region: Region, scheme: Scheme) -> Encoded:
    """The rows of a region of a matrix."""
    format, global_scale = bytes.format, None
    codes = buffers.piece(bytes, _CODES, region)
    if scheme.global_scale is not None:
        global_scale = global_scale_of(bytes.amax[0], format, scheme)
    if format.is_spanning(_SCALES):
        return Encoded(codes, bytes.buffer(_SCALES), global_scale)
    return Encoded(codes, _scales_of_rows(bytes, region, scheme.block_of(format)[1]), global_scale)


def decode_into(bytes: Buffers, encoded: Encoded, scheme: Scheme) -> None:
    """Sets the rowwise bytes of a matrix to those of all its rows. ValueError if its format has one
    scale for elements that these have several for.
    """
    format = bytes.format
    bytes.buffer(_CODES).copy_(encoded.codes)
    if scheme.global_scale is not None:
        bytes.amax.copy_(amax_of(encoded.global_scale.reshape(()), format, scheme))
    if format.is_spanning(_SCALES):
        bytes.buffer(_SCALES).copy_(encoded.scales)
        return
    (per_rows, per_columns), width = format.rowwise.scale_per, scheme.block_of(format)[1]
    scales = encoded.scales
    down, across = format.rowwise.block
    of_rows, of_columns = scales.shape
    firsts = scales[_firsts(of_rows, 1, down)][:, _firsts(of_columns, width, across)]
    if not torch.equal(scales, firsts):
        raise ValueError(f"scales differ within {format.rowwise.block}, which has one")
    columns = torch.arange(0, bytes.columns, per_columns) // width
    _scales_of(bytes).copy_(scales[::per_rows][:, columns])


def _firsts(count: int, step: int, block: int) -> torch.Tensor:
    """Of entries `step` elements apart: for each the first one in its block."""
    return torch.arange(0, count * step, step) // block * block // step


def _scales_of(bytes: Buffers) -> torch.Tensor:
    """The scales by row and column, without padding: a view."""
    used = bytes.format.used_shape(_SCALES, bytes.rows, bytes.columns)
    scales = bytes.buffer(_SCALES)[buffers.corner(used)]
    return scales.t() if bytes.format.rowwise.scale_transposed else scales


def _scales_of_rows(bytes: Buffers, region: Region, step: int) -> torch.Tensor:
    """Those of each row of a region, and of every `step`th column."""
    (per_rows, per_columns), scales = bytes.format.rowwise.scale_per, _scales_of(bytes)
    rows = torch.arange(region.row, region.row_end, device=scales.device)
    columns = torch.arange(region.column, region.column_end, step, device=scales.device)
    return scales[rows // per_rows][:, columns // per_columns]


def bytes_of(run: range, first: int, bits: int) -> slice:
    """Where a run of elements lies in a row that begins with the first."""
    return slice((run.start - first) * bits // 8, (run.stop - first) * bits // 8)


def blocks_of(run: range, first: int, size: int) -> slice:
    """The same of the blocks that it lies in."""
    return slice(run.start // size - first // size, -(-run.stop // size) - first // size)


# ---- scales in the dtypes of readers ----


def scales_as(scales: torch.Tensor, format: Format, dtype: torch.dtype) -> torch.Tensor:
    """Stored scales in the dtype that a layout has. ValueError if e8m0 has no code for one."""
    if format.scale == "f32" and dtype == torch.float8_e8m0fnu:
        return _powers_of_two(scales).view(dtype)
    return scales.contiguous().view(dtype)


def above_byte_zero(
    scales: torch.Tensor, codes: torch.Tensor, format: Format, block: tuple[int, int]
) -> torch.Tensor:
    """Published e8m0 scales, each of such a block, with the byte 1 in the place of 0 where all
    codes of the format's own block are zeros. Those are zeros under any scale, and TensorRT-LLM's
    kernels do not take the byte 0.
    """
    is_zero = scales == 0
    if not is_zero.any():
        return scales
    (down, across), bits = format.rowwise.block, format.rowwise.element_bits
    masks = torch.tensor(_MAGNITUDES[bits], dtype=torch.uint8, device=codes.device)
    magnitudes = (codes.unflatten(-1, (-1, len(masks))) & masks).flatten(-2).bfloat16()
    largest = F.max_pool2d(magnitudes[None], (down, across * bits // 8), ceil_mode=True)[0]
    rows, columns = (torch.arange(size, device=codes.device) for size in scales.shape)
    largest = largest[rows * block[0] // down][:, columns * block[1] // across]
    return scales.where(~is_zero | (largest != 0), 1)


def scales_from(scales: torch.Tensor, format: Format) -> torch.Tensor:
    """Published scales as the format stores them. ValueError if it has no code for one."""
    if format.scale == "f32":
        return scales.to(torch.float32)  # of a narrower float, exactly
    if format.scale == "e8m0" and scales.is_floating_point() and scales.element_size() > 1:
        return _powers_of_two(scales.to(torch.float32))
    return scales.view(torch.uint8)


def _powers_of_two(scales: torch.Tensor) -> torch.Tensor:
    """The e8m0 bytes of float32 scales: 2^(byte - 127), 255 for NaN."""
    bits = scales.contiguous().view(torch.int32)
    codes = bits >> _EXPONENT_AT
    exact = (bits & _MANTISSA == 0) & (bits > 0) & (codes < _NAN_E8M0)
    codes = codes.where(~scales.isnan(), _NAN_E8M0)
    if not (exact | (bits == _SMALLEST_E8M0) | scales.isnan()).all():
        raise ValueError("a scale is no power of two, which is all that e8m0 has")
    return codes.to(torch.uint8)


def _two_levels(format: Format) -> float:
    """What the amax of a tensor is divided by: the largest code times the largest scale."""
    return LARGEST[format.element] * LARGEST[format.scale]


def global_scale_of(amax: torch.Tensor, format: Format, scheme: Scheme) -> torch.Tensor:
    """The factor by which the cast multiplies a tensor, or the one by which decoding does. Of a
    tensor of zeros 1, for its codes are zeros under any scale.
    """
    # Not by a number of Python's: on a GPU torch divides by those with another rounding.
    levels = torch.full_like(amax, _two_levels(format))
    if scheme.is_reciprocal:
        scale = (levels / amax).clamp(max=torch.finfo(torch.float32).max)
    else:
        scale = amax * (1 / levels)
    return scale.where(amax != 0, 1.0)


def amax_of(scale: torch.Tensor, format: Format, scheme: Scheme) -> torch.Tensor:
    """The amax of a tensor with this global scale [], which is what a format keeps; if none has it,
    that of the nearest scale. Of several the one with the fewest digits, for most are amaxes of
    bfloat16 values.
    """
    levels = _two_levels(format)
    near = levels / scale if scheme.is_reciprocal else levels * scale
    around = near.view(torch.int32) + torch.arange(-4, 5, dtype=torch.int32, device=scale.device)
    around = around.clamp(1, _INFINITY - 1)
    amaxes = around.view(torch.float32)
    bits = global_scale_of(amaxes, format, scheme).view(torch.int32).long()
    away = (bits - scale.view(torch.int32)).abs()
    digits = around & -around  # the lowest bit that is set
    return amaxes[digits.where(away == away.min(), 0).argmax()]
