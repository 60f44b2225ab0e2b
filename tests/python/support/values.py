"""Matrices that meet every tie, threshold and underflow: random data alone meets none.

Each kind is a function (shape, rng) -> fp32 matrix. FINITE and SPECIAL list them by name.
"""

import numpy as np

import reference
from reference.floats import FLT_MAX, from_bits

# Significands at which some scale rule changes its mind: those of 1, of every element type's
# largest value (448, 57344, 6, 7.5, 28, 127), and the ties before a carry.
SIGNIFICANDS = (1, 1.25, 1.5, 1.75, 1.875, 1.96875, 1.984375, 1.9921875)
GRAINS = ((1, 16), (16, 1), (1, 32), (32, 1), (16, 16), (32, 32), (1, 128), (128, 1), (128, 128))


def with_neighbours(values):
    """fp32 values, and those next to each on both sides."""
    values = np.asarray(values, np.float32)
    inf = np.float32(np.inf)
    with np.errstate(over="ignore"):
        below, above = np.nextafter(values, -inf), np.nextafter(values, inf)
    every = np.unique(np.concatenate([below, values, above]))
    return every[np.isfinite(every)]


def _amaxes():
    with np.errstate(over="ignore"):
        exponents = 2.0 ** np.arange(-149, 128)
        values = np.outer(SIGNIFICANDS, exponents).astype(np.float32).ravel()
    every = with_neighbours(np.append(values[np.isfinite(values)], FLT_MAX))
    return every[every >= 0]


AMAXES = _amaxes()


def _element_points():
    """Every value of every element type and every tie between two, with neighbours, up to 1."""
    points = []
    for element in reference.ELEMENTS.values():
        m = element.magnitudes
        unit = 2.0 ** -(element.emax + 1)
        points.append(with_neighbours(np.concatenate([m, (m[1:] + m[:-1]) / 2]) * unit))
    return np.abs(np.unique(np.concatenate(points)))


POINTS = _element_points()


def _signs(shape, rng):
    return rng.choice(np.array([-1, 1], np.float32), shape)


def blocks_of(amaxes, grain, shape, rng):
    """Blocks of `grain` whose largest magnitudes are drawn from `amaxes`."""
    grid = tuple(-(-n // g) for n, g in zip(shape, grain, strict=True))
    amax = rng.permutation(np.resize(amaxes, grid[0] * grid[1])).reshape(grid)
    rows, columns = np.arange(shape[0]) // grain[0], np.arange(shape[1]) // grain[1]
    spread = amax[rows[:, None], columns[None, :]]
    share = rng.choice(np.array([0, 1, 0.5, 0.999, 0.3], np.float32), shape)
    share *= rng.uniform(0.5, 1, shape).astype(np.float32) ** (share < 1)
    i = np.minimum(
        np.arange(grid[0]) * grain[0] + rng.integers(grain[0], size=grid[0]), shape[0] - 1
    )
    j = np.minimum(
        np.arange(grid[1]) * grain[1] + rng.integers(grain[1], size=grid[1]), shape[1] - 1
    )
    share[i[:, None], j[None, :]] = 1
    return spread * share * _signs(shape, rng)


def random(shape, rng):
    return rng.normal(size=shape).astype(np.float32)


def zeros(shape, rng):
    return np.zeros(shape, np.float32)


def signed_zeros(shape, rng):
    return np.zeros(shape, np.float32) * _signs(shape, rng)


def largest(shape, rng):
    return np.full(shape, FLT_MAX) * _signs(shape, rng)


def subnormal(shape, rng):
    return from_bits(rng.integers(0, 1 << 23, shape, dtype=np.uint32)) * _signs(shape, rng)


def tiny(shape, rng):
    return np.float32(1e-37) * rng.uniform(-1, 1, shape).astype(np.float32)


def single(shape, rng):
    x = np.zeros(shape, np.float32)
    x[tuple(rng.integers(n) for n in shape)] = -0.3
    return x


def points(shape, rng):
    """Element values and ties, under power-of-two scales that differ from block to block."""
    x = rng.choice(POINTS, shape) * _signs(shape, rng)
    exponent = rng.integers(-40, 40, (-(-shape[0] // 32), -(-shape[1] // 32)))
    spread = np.kron(2.0**exponent, np.ones((32, 32)))[: shape[0], : shape[1]]
    return (x * spread).astype(np.float32)


def all_points(shape, rng):
    """Element values and ties, under one power-of-two scale for the whole tensor."""
    x = rng.choice(POINTS, shape) * _signs(shape, rng)
    x[rng.integers(shape[0]), rng.integers(shape[1])] = rng.choice([0.75, 0.875, 0.9375, 0.9921875])
    return x.astype(np.float32)


def underflowing(shape, rng):
    """Blocks that are nothing beside the tensor's largest element."""
    x = blocks_of(2.0 ** np.arange(-40.0, 1.0), (16, 16), shape, rng).astype(np.float32)
    x[0, 0] = 2.0**10
    return x


def random_bits(shape, rng):
    """Any 32 bits: all magnitudes alike, one NaN or infinity in 256."""
    return from_bits(rng.integers(0, 1 << 32, shape, dtype=np.uint32))


def infinities(shape, rng):
    x = random(shape, rng)
    x[rng.random(shape) < 0.02] = np.inf
    x[rng.random(shape) < 0.02] = -np.inf
    return x


# Quiet and signalling, of both signs, with payloads.
NANS = from_bits(np.array([0x7FC00000, 0xFFC00000, 0x7F800001, 0xFF800001, 0x7FFFFFFF], np.uint32))


def nans(shape, rng):
    x = random(shape, rng)
    return np.where(rng.random(shape) < 0.05, rng.choice(NANS, shape), x)


def all_nan(shape, rng):
    return rng.choice(NANS, shape)


def nans_beside_infinities(shape, rng):
    x = infinities(shape, rng)
    x = np.where(rng.random(shape) < 0.05, rng.choice(NANS, shape), x)
    x[:32] = np.where(rng.random(x[:32].shape) < 0.5, rng.choice(NANS, x[:32].shape), np.inf)
    return x


def _thresholds(grain):
    def thresholds(shape, rng):
        return blocks_of(AMAXES, grain, shape, rng)

    return thresholds


FINITE = {
    f.__name__: f
    for f in [
        random,
        zeros,
        signed_zeros,
        largest,
        subnormal,
        tiny,
        single,
        points,
        all_points,
        underflowing,
    ]
} | {f"thresholds_{rows}x{columns}": _thresholds((rows, columns)) for rows, columns in GRAINS}

SPECIAL = {f.__name__: f for f in [random_bits, infinities, nans, all_nan, nans_beside_infinities]}
