"""Casts of any shape, any values, any cut: equal to the reference, and a part equal to its place in
the whole. Cases are drawn, but from fixed seeds.
"""

import numpy as np
import pytest
import torch

import narrowcast as nc
import reference
import values
from conformance import FORMATS, KINDS, assert_same, usages
from models import DEVICES

CASES = 27


def shape_of(fmt, case, rng):
    """One row, one column, odd sides, three dimensions and more, by turns; rows fill whole bytes
    in at least one usage.
    """
    group = fmt.group
    odd = [int(rng.integers(1, 150)) * 2 + 1 for _ in range(4)]
    whole = [int(rng.integers(1, 80)) * group for _ in range(2)]
    kinds = [
        (1, whole[0]),
        (whole[0], 1),
        (odd[0], whole[0]),
        (whole[0], odd[0]),
        (odd[0] % 7 + 1, odd[1] % 5 + 1, whole[0]),
        (2, odd[0] % 9 + 1, group, odd[1]),
        (1, 1, odd[2] % 50 + 1, 1, whole[1]),
        (whole[0],),
        (whole[0], whole[1]),
    ]
    return kinds[case % len(kinds)]


def drawn(fmt, case, seed):
    """(shape, its matrix as fp32 values)."""
    rng = np.random.default_rng((seed, case))
    shape = shape_of(fmt, case, rng)
    rows, columns = int(np.prod(shape[:-1])), shape[-1]
    kind = rng.choice(sorted(KINDS))
    return shape, KINDS[kind]((rows, columns), rng).astype(np.float32), rng


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("device", DEVICES)
def test_any_shape_and_values(name, device):
    fmt = FORMATS[name]
    for case in range(CASES):
        shape, x, _ = drawn(fmt, case, 1)
        wanted = usages(fmt, x.shape)
        assert any(wanted.values())
        q = nc.quantize(torch.from_numpy(x).view(shape).to(device), name, **wanted)
        truth = reference.quantize(x, fmt, **wanted)
        where = f"case {case}, {shape}"
        assert q.shape == shape
        assert_same(q, truth, where)
        for usage, present in wanted.items():
            if present:
                got = q.dequantize(usage=usage)
                expected = reference.dequantize(truth, fmt, x.shape, usage).reshape(shape)
                assert got.shape == shape
                assert reference.same_bits(got.cpu().numpy(), expected), where


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("device", DEVICES)
def test_a_part_is_its_place_in_the_whole(name, device):
    """A cut at row steps takes the bytes that its rows, quantized under the whole's amax, have."""
    fmt, step = FORMATS[name], nc.format(name).row_step
    for case in range(CASES):
        rng = np.random.default_rng((2, case))
        rows = step * int(rng.integers(1, 6)) + int(rng.integers(0, 40)) * fmt.group
        columns = int(rng.integers(1, 60)) * fmt.group
        x = KINDS[rng.choice(sorted(KINDS))]((rows, columns), rng).astype(np.float32)
        q = nc.quantize(torch.from_numpy(x).to(device), name)
        amax = reference.amax_of(x)[0, 0]
        cuts = np.unique(rng.integers(0, rows // step + 1, 3) * step)
        for begin, end in zip([0, *cuts], [*cuts, rows], strict=True):
            if begin < end:
                part = q[int(begin) : int(end)].clone()
                truth = reference.quantize(x[begin:end], fmt, tensor_amax=amax)
                assert_same(part, truth, f"case {case}, rows {begin} to {end} of {x.shape}")


@pytest.mark.parametrize("name", [name for name in FORMATS if FORMATS[name].group > 1])
def test_odd_counts_of_packed_formats_are_refused(name):
    """Each usage when it is asked for, with the shape, the multiple and the count."""
    fmt = FORMATS[name]
    for case in range(CASES):
        rng = np.random.default_rng((3, case))
        shape = tuple(int(n) for n in rng.integers(1, 30, rng.integers(1, 5)))
        matrix = int(np.prod(shape[:-1])), shape[-1]
        for usage, fits in usages(fmt, matrix).items():
            other = "columnwise" if usage == "rowwise" else "rowwise"
            if fits:
                nc.quantize(torch.zeros(shape), name, **{other: False})
                continue
            count = matrix[0] if getattr(fmt, usage).transposed else matrix[1]
            words = rf"{name} cannot hold.*{usage}.*multiple of {fmt.group}, not {count}"
            with pytest.raises(ValueError, match=words):
                nc.quantize(torch.zeros(shape), name, **{other: False})


def test_the_draws_meet_every_kind_of_shape():
    for fmt in FORMATS.values():
        shapes = [drawn(fmt, case, 1)[0] for case in range(CASES)]
        assert {len(shape) for shape in shapes} >= {1, 2, 3, 4, 5}
        assert any(shape[-1] == 1 for shape in shapes)
        assert any(np.prod(shape[:-1]) == 1 for shape in shapes)
    assert len(values.FINITE | values.SPECIAL) == len(KINDS)
