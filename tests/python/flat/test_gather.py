"""The packed gather of flat shards: after it every rank has the bytes of the whole cast; what is
wrong is refused before a byte moves. Which bytes are whose, for many cuts, is tested in
tests/runtime/test_flat_gather.cpp.
"""

import random

import pytest
import torch
import torch.distributed as dist

import flats
import narrowcast as nc
import ranks
from internals import bytes_of, store_of
from models import STORAGES, same
from narrowcast import _C
from narrowcast.flat import Gather

SHAPES = [(36, 52), (64, 128), (4, 4, 256), (128,), (37, 53)]


def bucket_of(device, shapes=SHAPES):
    """Weights of all formats and shapes, poisoned, with their values and names."""
    pairs = [(shape, name) for name in nc.formats() for shape in shapes if flats.holds(name, shape)]
    values = [flats.value_of(shape, seed).to(device) for seed, (shape, _) in enumerate(pairs)]
    names = [name for _, name in pairs]
    weights = [
        flats.poisoned(value, name, device) for value, name in zip(values, names, strict=True)
    ]
    return weights, values, names


def cuts_of(elements, world, rng):
    """Where each rank begins, and the end: anywhere, in equal parts, or at few places."""
    way = rng.randrange(4)
    if way == 0:
        return [min(rank * -(-elements // world), elements) for rank in range(world)] + [elements]
    if way == 1:
        middle = rng.randrange(elements)
        return [0, *(min(middle + rank, elements) for rank in range(1, world)), elements]
    return [0, *sorted(rng.randrange(elements + 1) for _ in range(world - 1)), elements]


def owned(values, world, seed):
    """The cuts of each value, the same on all ranks, and the ranges that a Gather takes."""
    rng = random.Random(seed)
    cuts = [cuts_of(value.numel(), world, rng) for value in values]
    return cuts, [[(one[rank], one[rank + 1]) for one in cuts] for rank in range(world)]


def cast(mesh, weights, values, cuts):
    rank = mesh.get_local_rank()
    masters = [flats.shards(*pair, rank) for pair in zip(values, cuts, strict=True)]
    nc.quantize_master_weights(weights, *zip(*masters, strict=True), mesh.get_group())


def fault(weight, value):
    """The first buffer that is not as in a whole cast, padding included; columnwise ones that
    follow are made first.
    """
    expected = nc.quantize(value, weight.format.name)
    nc.post_all_gather_processing([weight])
    want = flats.stored(expected)
    have = flats.stored(weight)
    assert have.keys() == want.keys()
    return next((name for name, one in have.items() if not same(one, want[name])), None)


@pytest.mark.parametrize("async_op", [False, True])
@pytest.mark.parametrize("world", [2, 3])
@ranks.on("world")
def test_all_formats_in_one_bucket(mesh, async_op):
    device, world = mesh.device_type, mesh.size()
    for seed in range(4):
        weights, values, names = bucket_of(device)
        cuts, ranges = owned(values, world, seed)
        cast(mesh, weights, values, cuts)
        gather = Gather(weights, ranges, mesh.get_group())
        collectives, all_gather = [], dist.all_gather_into_tensor

        def counting(*arguments, counted=collectives, run=all_gather, **options):
            counted.append(options)
            return run(*arguments, **options)

        dist.all_gather_into_tensor = counting
        try:
            gather.start(async_op)
            gather.finish()
        finally:
            dist.all_gather_into_tensor = all_gather
        assert collectives == [{"async_op": async_op}]
        assert gather.payload_bytes % 256 == 0
        for weight, value, name in zip(weights, values, names, strict=True):
            derived = nc.format(name).columnwise_derived
            assert (store_of(weight).pending is not None) == derived, name
            assert fault(weight, value) is None, (name, tuple(value.shape), fault(weight, value))


@pytest.mark.parametrize("name", STORAGES)
@ranks.on(2)
def test_every_step_gathers_anew(mesh, name):
    """Steps over one Gather: each brings the newest bytes, and nothing of the step before."""
    device = mesh.device_type
    weights = [flats.poisoned(flats.value_of((64, 128), special=False), name, device)]
    cuts, ranges = owned([torch.empty(64 * 128)], mesh.size(), 1)
    gather = Gather(weights, ranges, mesh.get_group())
    for step in range(1, 4):
        values = [step * flats.value_of((64, 128), step, special=False).to(device)]
        cast(mesh, weights, values, cuts)
        gather.start(async_op=step % 2 == 0)
        gather.finish()
        parts = [None] * mesh.size()
        own = {name: one.cpu().numpy().tobytes() for name, one in flats.stored(weights[0]).items()}
        dist.all_gather_object(parts, own, mesh.get_group())
        assert all(part == parts[0] for part in parts)
        if not nc.format(name).is_delayed:
            assert fault(weights[0], values[0]) is None


@pytest.mark.parametrize("name", [n for n in STORAGES if nc.format(n).columnwise_derived])
@ranks.on(2)
def test_columnwise_that_was_read_too_early(mesh, name):
    """Columnwise bytes that somebody has made of shards alone are made again."""
    device = mesh.device_type
    value = flats.value_of((64, 128), special=False).to(device)
    weight = flats.poisoned(value, name, device)
    cast(mesh, [weight], [value], [[0, 1000, 64 * 128]])
    gather = Gather([weight], [[(0, 1000)], [(1000, 64 * 128)]], mesh.get_group())
    weight.columnwise_data  # noqa: B018
    gather.start()
    gather.finish()
    assert same(weight.columnwise_data, nc.quantize(value, name).columnwise_data)


# ---- one process ----


def test_one_rank_moves_nothing(format, device):
    weight = nc.quantize(torch.ones(64, 128, device=device), format)
    before = {name: one.clone() for name, one in flats.stored(weight).items()}
    gather = Gather([weight], [[(0, 64 * 128)]], None)
    gather.start()
    gather.finish()
    assert gather.payload_bytes == 0
    assert all(same(one, before[name]) for name, one in flats.stored(weight).items())


def test_ranks_in_any_order():
    """Ranges need not follow the ranks, and a rank may own nothing."""
    value = flats.value_of((64, 128), special=False)
    name = nc.formats()[0]
    whole = nc.quantize(value, name)
    ranges = [[(5000, 8192)], [(0, 0)], [(0, 5000)]]
    gathers, payloads, codes = [], [], []
    for rank, [(begin, end)] in enumerate(ranges):
        bytes = bytes_of(flats.poisoned(value, name))
        codes.append(bytes.buffer(0))
        codes[rank].view(-1)[begin:end] = whole.rowwise_data.view(-1)[begin:end]
        gathers.append(_C.FlatGather([bytes], ranges, rank))
        payloads.append(torch.zeros(gathers[rank].payload_bytes, dtype=torch.uint8))
        gathers[rank].pack(payloads[rank])
    for gather, one in zip(gathers, codes, strict=True):
        gather.unpack(torch.cat(payloads))
        assert same(one, whole.rowwise_data)


def test_wrong_weights(format):
    weight = nc.quantize(torch.ones(64, 128), format)
    everything = [[(0, 64 * 128)]]
    with pytest.raises(TypeError, match="weight 1 is a Tensor, not a QuantizedTensor"):
        Gather([weight, torch.ones(2)], everything, None)
    with pytest.raises(ValueError, match="weight 0 is a view of a 256x128 matrix"):
        Gather([nc.quantize(torch.ones(256, 128), format)[:128]], everything, None)
    with pytest.raises(ValueError, match="has columnwise bytes alone"):
        Gather([nc.quantize(torch.ones(64, 128), format, rowwise=False)], everything, None)


@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        ([[(0, 8191)]], "its 8192 elements, .* from 8192 to 8192 .* 8191 is due"),
        ([[(0, 4097)], [(4096, 8192)]], "the one from 4096 to 8192 comes where 4097 is due"),
        ([[(0, 8192)], [(8192, 8193)]], "are not its 8192 elements"),
        ([[(-1, 8192)]], "the one from -1 to 8192 comes where 0 is due"),
    ],
)
def test_wrong_ranges(ranges, message):
    with pytest.raises(ValueError, match=message):
        _C.FlatGather([bytes_of(nc.quantize(torch.ones(64, 128), nc.formats()[0]))], ranges, 0)


def test_freed_buffers():
    bytes = bytes_of(nc.quantize(torch.ones(64, 128), nc.formats()[0]))
    gather = _C.FlatGather([bytes], [[(0, 4096)], [(4096, 8192)]], 0)
    assert gather.is_of([bytes]) and not gather.is_of([bytes, bytes]) and not gather.is_of([])
    bytes.buffer(0).untyped_storage().resize_(0)
    assert not gather.is_of([bytes])
    with pytest.raises(ValueError, match="has been freed"):
        gather.pack(torch.empty(gather.payload_bytes, dtype=torch.uint8))
