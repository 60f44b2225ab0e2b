"""The law of the operator table: dequantize(op(q)) == op(dequantize(q)), for every format, over
drawn shapes (ragged, one row, one column, odd, three dimensions and more) and chains of operations.
"""

import math
import random

import pytest
import torch

import narrowcast as nc

TESTED_FORMATS = nc.formats()
USAGES = ("rowwise", "columnwise")


def draw_shape(f, rng, usages):
    """A shape that the format holds in these usages."""
    row_step, column_step = f.step(usages)
    rows = rng.choice([1, rng.randrange(1, 200), 3 * row_step, 2 * row_step + rng.randrange(1, 9)])
    columns = rng.choice([1, rng.randrange(1, 200), 2 * column_step, column_step + 5])
    for usage in usages:
        if getattr(f, usage).transposed:
            rows = -(-rows // f.group) * f.group
        else:
            columns = -(-columns // f.group) * f.group
    leading = [rng.randrange(1, 4) for _ in range(rng.choice([0, 0, 1, 2]))]
    return (*leading, rows, columns)


def legal(length, step, rng):
    """Bounds of a slice that are legal."""
    ends = sorted({0, length, *range(0, length, step)})
    begin, end = sorted(rng.choices(ends, k=2))
    return begin, end if end > begin else length


def slice_rows(f, rng, shape, usages):
    step = f.step(usages)[0]
    inner = math.prod(shape[1:-1])
    begin, end = legal(shape[0], step // math.gcd(step, inner), rng)
    return lambda t: t[begin:end]


def slice_columns(f, rng, shape, usages):
    begin, end = legal(shape[-1], f.step(usages)[1], rng)
    return lambda t: t.narrow(-1, begin, end - begin)


def split_rows(f, rng, shape, usages):
    step, inner = f.step(usages)[0], math.prod(shape[1:-1])
    size = rng.randrange(1, 3) * (step // math.gcd(step, inner))
    which = rng.randrange(-(-shape[0] // size))
    return lambda t: t.split(size)[which]


def split_columns(f, rng, shape, usages):
    size = f.step(usages)[1] * rng.randrange(1, 3)
    return lambda t: t.split(size, dim=-1)[-1]


def fold(f, rng, shape, usages):
    divisor = rng.choice([d for d in range(1, shape[0] + 1) if shape[0] % d == 0])
    return lambda t: t.unflatten(0, (divisor, -1)).unsqueeze(0)


def unfold(f, rng, shape, usages):
    return lambda t: t.flatten(0, -2).squeeze(0).reshape(-1, shape[-1])


def flat_and_back(f, rng, shape, usages):
    return lambda t: t.contiguous().view(-1).clone().view(shape)


def transpose(f, rng, shape, usages):
    exact = f.mirrored and f.columnwise_derived and set(usages) == set(USAGES)
    return (lambda t: t.flatten(0, -2).t()) if exact else (lambda t: t.clone())


def logical(f, rng, shape, usages):
    return lambda t: t.to(torch.bfloat16).to(torch.float32) if is_quantized(t) else t


def copied(f, rng, shape, usages):
    return lambda t: torch.empty_like(t).copy_(t)


def is_quantized(t):
    return isinstance(t, nc.QuantizedTensor)


OPERATIONS = [
    *(slice_rows, slice_columns, split_rows, split_columns),
    *(fold, unfold, flat_and_back, transpose, logical, copied),
]


def chain(format, seed, usages):
    f, rng = nc.format(format), random.Random(f"{format} {seed}")
    shape = draw_shape(f, rng, usages)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    q = nc.quantize(x, f, **{usage: usage in usages for usage in USAGES})
    values = {usage: q.dequantize(usage=usage) for usage in usages}
    done = [str(shape)]
    for _ in range(5):
        if q.numel() == 0:
            break
        make = rng.choice(OPERATIONS)
        operation = make(f, rng, tuple(q.shape), usages)
        done.append(make.__name__)
        try:
            q = operation(q)
        except ValueError as error:  # a fold of a ragged part
            assert "multiples of" in str(error), (done, error)
            break
        values = {usage: operation(value) for usage, value in values.items()}
        if make is transpose and operation(torch.ones(2, 1)).shape == (1, 2):
            values = dict(zip(values, reversed(values.values()), strict=True))
        for usage, value in values.items():
            assert is_quantized(q), done
            assert q.shape == value.shape, done
            assert torch.equal(q.dequantize(usage=usage), value), (done, usage)


@pytest.mark.parametrize("usages", [USAGES, USAGES[:1], USAGES[1:]], ids=" ".join)
def test_chains(format, usages):
    for seed in range(40):
        chain(format, seed, usages)
