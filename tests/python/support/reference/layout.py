"""Where elements and scales lie: from a matrix to the bytes of its buffers, and back."""

import numpy as np


def cdiv(n, k):
    return -(-n // k)


def up(n, k):
    return cdiv(n, k) * k


def block_grid(shape, block):
    """The number of blocks along each dimension; 1 x 1 where one block spans the tensor."""
    return (1, 1) if block is None else (cdiv(shape[0], block[0]), cdiv(shape[1], block[1]))


def spread(per_block, block, shape):
    """The value of each element's block, [rows, columns]."""
    if block is None:
        return np.broadcast_to(per_block.reshape(1, 1), shape)
    rows, columns = np.arange(shape[0]) // block[0], np.arange(shape[1]) // block[1]
    return per_block[rows[:, None], columns[None, :]]


def pack(codes, usage, fmt):
    """One code for each element, [rows, columns], to stored bytes."""
    stored = np.ascontiguousarray(codes.T if usage.transposed else codes)
    rows, length = stored.shape
    if length % fmt.group:
        raise ValueError(
            f"{fmt.name}: a stored row of {length} elements is no multiple of {fmt.group}"
        )
    if fmt.stored_bits == 4:
        return stored[:, 0::2] | stored[:, 1::2] << 4
    if fmt.stored_bits == 6:
        c0, c1, c2, c3 = (stored[:, i::4] for i in range(4))
        packed = np.empty((rows, length // 4, 3), np.uint8)
        packed[..., 0] = c0 | c1 << 6
        packed[..., 1] = c1 >> 2 | c2 << 4
        packed[..., 2] = c2 >> 4 | c3 << 2
        return packed.reshape(rows, length // 4 * 3)
    return stored


def unpack(data, usage, fmt, shape):
    """Stored bytes to one code for each element, [rows, columns]."""
    rows, length = shape[::-1] if usage.transposed else shape
    stored = np.empty((rows, length), np.uint8)
    if fmt.stored_bits == 4:
        stored[:, 0::2], stored[:, 1::2] = data & 15, data >> 4
    elif fmt.stored_bits == 6:
        b0, b1, b2 = (data[:, i::3] for i in range(3))
        stored[:, 0::4] = b0 & 63
        stored[:, 1::4] = b0 >> 6 | (b1 & 15) << 2
        stored[:, 2::4] = b1 >> 4 | (b2 & 3) << 4
        stored[:, 3::4] = b2 >> 2
    else:
        stored[:] = data
    return stored.T if usage.transposed else stored


def scale_shape(usage, shape):
    """The stored scale matrix's shape; (1,) where one scale spans the tensor."""
    if usage.block is None:
        return (1,)
    grid = block_grid(shape, usage.per)
    grid = grid[::-1] if usage.scale_transposed else grid
    return up(grid[0], usage.pad[0]), up(grid[1], usage.pad[1])


def store_scales(per_block, usage, shape):
    """One scale for each block to the stored matrix: repeated, exchanged, padded with zeros."""
    if usage.block is None:
        return per_block.reshape(1)
    grid = block_grid(shape, usage.per)
    rows = np.arange(grid[0]) * usage.per[0] // usage.block[0]
    columns = np.arange(grid[1]) * usage.per[1] // usage.block[1]
    entries = per_block[rows[:, None], columns[None, :]]
    entries = entries.T if usage.scale_transposed else entries
    stored = np.zeros(scale_shape(usage, shape), per_block.dtype)
    stored[: entries.shape[0], : entries.shape[1]] = entries
    return stored


def stored_blocks(scales, usage, shape):
    """The stored matrix back to one scale for each block."""
    if usage.block is None:
        return scales.reshape(1, 1)
    grid = block_grid(shape, usage.per)
    entries = scales.T if usage.scale_transposed else scales
    repeat = usage.block[0] // usage.per[0], usage.block[1] // usage.per[1]
    return entries[: grid[0] : repeat[0], : grid[1] : repeat[1]]
