"""What ranks send of gradients, and the sums that they make of it, against the reference, byte for
byte: every format that gradients can travel in, without the processes.
"""

import numpy as np
import pytest
import torch

import narrowcast as nc
import reference
from conformance import FORMATS, KINDS, ON_DEVICES, narrowed
from narrowcast import _C

CARRIED = [name for name in FORMATS if nc.format(name).casts_parts]
LONG = 0x123456789ABCDEF0, 2**33 + 7
DTYPES = torch.float32, torch.bfloat16, torch.float16


def with_every_kind(count, elements, dtype, seed):
    """Values of each rank, [ranks, elements]: a stretch of each kind, in another order each."""
    rng = np.random.default_rng(seed)
    kinds, length = [*KINDS.values()], -(-elements // len(KINDS))
    every = []
    for _ in range(count):
        parts = []
        for _ in range(count):
            order = rng.permutation(len(kinds))
            parts.append(np.concatenate([kinds[i]((1, length), rng)[0] for i in order])[:elements])
        every.append(narrowed(np.stack(parts).astype(np.float32), dtype))
    return every


def sent_by(rank, values, plugin, dtype, device, draw):
    """The rank's values as they are on the device, and the bytes for each other rank."""
    mine = torch.from_numpy(values[rank]).to(device, dtype)
    draw = draw and (*draw[:2], draw[2] * mine.numel())
    count = len(values)
    sent = _C.part_buffers(plugin, mine, count)[0].fill_(0x5A)
    _C.cast_parts(plugin, mine, sent, count, rank, draw)
    return mine, sent


def check(name, device, dtype, count, elements, seeds=None):
    fmt, plugin = FORMATS[name], nc.format(name).plugin
    values = with_every_kind(count, elements, dtype, seed=count * elements)
    draws = None if seeds is None else [(*seeds, sender) for sender in range(3, 3 + count)]
    mine, sent = zip(
        *(
            sent_by(rank, values, plugin, dtype, device, draws and draws[rank])
            for rank in range(count)
        ),
        strict=True,
    )
    truth = reference.reduce_scatter(values, fmt, count, draws)
    for rank in range(count):
        others = [other for other in range(count) if other != rank]
        for slot, other in enumerate(others):
            draw = draws and draws[rank]
            part = values[rank][other]
            expected = reference.cast_part(part, fmt, draw=draw, count=count, rank=other)
            assert np.array_equal(sent[rank][slot].cpu().numpy(), expected), (rank, other)
        received = torch.stack([sent[other][rank - (rank > other)] for other in others])
        total = torch.empty(elements, dtype=dtype, device=device)
        _C.add_parts(plugin, mine[rank], received, total, count, rank, count)
        with np.errstate(all="ignore"):
            expected = torch.from_numpy(truth[rank]).to(dtype).float().numpy()
        assert reference.same_bits(total.float().cpu().numpy(), expected), rank


@pytest.mark.parametrize("name", CARRIED)
@pytest.mark.parametrize("dtype", DTYPES)
@ON_DEVICES
def test_sums_are_the_references(name, device, dtype):
    for count, elements in ((2, 9001), (3, 4096), (4, 1237)):
        check(name, device, dtype, count, elements)
    for elements in (1, 7, 8, 33, 1025):
        check(name, device, dtype, 2, elements)


@pytest.mark.parametrize("name", CARRIED)
@ON_DEVICES
def test_stochastic_sums_are_the_references(name, device):
    check(name, device, torch.float32, 3, 2051, LONG)
    check(name, device, torch.bfloat16, 2, 4100, (0, 0))


@pytest.mark.parametrize("name", CARRIED)
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@ON_DEVICES
def test_what_is_not_finite_makes_its_block_nan(name, device, bad):
    plugin, block = nc.format(name).plugin, nc.format(name).rowwise.block[1]
    values = [np.ones((2, 4 * block), np.float32) for _ in range(2)]
    values[0][1, 2 * block + 3] = bad
    sent = sent_by(0, values, plugin, torch.float32, device, None)[1]
    mine, total = (torch.ones(n, device=device) for n in (8 * block, 4 * block))
    _C.add_parts(plugin, mine, sent, total, 2, 1, 1)
    expected = torch.full((4, block), 2.0)
    expected[2] = torch.nan
    assert torch.equal(total.view(4, block).cpu().nan_to_num(-1), expected.nan_to_num(-1))


def test_memory_is_checked():
    plugin = nc.format(CARRIED[0]).plugin
    values = torch.zeros(2 * 64)
    sent, received = _C.part_buffers(plugin, values, 2)
    assert sent.shape == received.shape and sent.data_ptr() != received.data_ptr()
    sent = sent.flatten()
    with pytest.raises(ValueError, match="no equal parts"):
        _C.cast_parts(plugin, values, sent, 3, 0, None)
    with pytest.raises(ValueError, match="what is sent of gradients has"):
        _C.cast_parts(plugin, values, sent[1:], 2, 0, None)
    with pytest.raises(TypeError, match="Double"):
        _C.cast_parts(plugin, values.double(), sent, 2, 0, None)
    with pytest.raises(ValueError, match="the sum of gradients has"):
        _C.add_parts(plugin, values, sent, values, 2, 0, 1)
