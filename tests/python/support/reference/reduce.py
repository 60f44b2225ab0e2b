"""A reduce-scatter in a format: what a rank sends to another, and the sums (docs/network.md)."""

from types import SimpleNamespace

import numpy as np

from reference.floats import from_bits
from reference.layout import pack, unpack, up
from reference.numbers import decode_e8m0
from reference.philox import random_words
from reference.scales import block_scales

UNIT, ALIGNED = 8, 16  # elements whose codes fill bytes; bytes at whose multiples scales begin
ALONG = SimpleNamespace(transposed=False)


def cast_part(x, fmt, *, draw=None, count=1, rank=0):
    """The bytes of the fp32 values x, a part for `rank` of `count`. `draw`: (seed, step, sender) of
    stochastic rounding, whose words count the elements that a sender has for all ranks.
    """
    block, whole = fmt.rowwise.block[1], up(x.size, fmt.rowwise.block[1])
    blocks = np.append(x, np.zeros(whole - x.size, np.float32)).reshape(-1, block)
    with np.errstate(all="ignore"):
        largest = np.abs(blocks).max(axis=1)
        amax = np.where(np.isnan(largest), from_bits([0x7FFFFFFF]), largest)
        stored, encode, _ = block_scales(amax, fmt)
        y = (blocks * encode[:, None]).reshape(-1)
    stored = np.where(np.isfinite(amax), stored, np.nan if fmt.scale == "f32" else 255)
    if draw is None:
        codes = fmt.element.encode(y)
    else:
        seed, step, sender = draw
        first = (sender * count + rank) * x.size
        index = np.uint64(first) + np.arange(whole, dtype=np.uint64)
        codes = fmt.element.encode_stochastic(y, random_words(seed, step, index))
    units = np.zeros((1, up(x.size, UNIT)), np.uint8)
    units[0, : x.size] = codes[: x.size]
    scales = stored.astype(np.float32 if fmt.scale == "f32" else np.uint8).view(np.uint8)
    return np.concatenate([_aligned(pack(units, ALONG, fmt)), _aligned(scales)])


def _aligned(entries):
    entries = entries.reshape(-1)
    return np.append(entries, np.zeros(up(entries.size, ALIGNED) - entries.size, np.uint8))


def part_of(sent, fmt, elements):
    """The values of a part's bytes."""
    shape, block = (1, up(elements, UNIT)), fmt.rowwise.block[1]
    packed = shape[1] * fmt.stored_bits // 8
    codes = unpack(sent[:packed].reshape(1, -1), ALONG, fmt, shape)[0, :elements]
    scales = sent[up(packed, ALIGNED) :]
    scales = scales.view(np.float32) if fmt.scale == "f32" else decode_e8m0(scales)
    with np.errstate(all="ignore"):
        return fmt.element.decode(codes) * scales[np.arange(elements) // block]


def reduce_scatter(values, fmt, divisor, draws=None):
    """The fp32 sum of each rank, divided. `values`: of each rank, [ranks, elements]; `draws`: of
    each, as cast_part has it.
    """
    count, elements = values[0].shape
    sums = []
    for rank in range(count):
        total = np.zeros(elements, np.float32)
        for sender in range(count):
            part = values[sender][rank]
            if sender != rank:
                draw = draws and draws[sender]
                sent = cast_part(part, fmt, draw=draw, count=count, rank=rank)
                part = part_of(sent, fmt, elements)
            with np.errstate(all="ignore"):
                total = total + part
        with np.errstate(all="ignore"):
            sums.append(total / np.float32(divisor))
    return sums
