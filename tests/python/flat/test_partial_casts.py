"""What goes wrong in other implementations of partial casts (docs/flat-shards.md): one test for
each, named by it.
"""

import itertools

import pytest
import torch
import torch.distributed as dist

import flats
import narrowcast as nc
import ranks
from models import BUFFERS, same
from narrowcast import flat
from narrowcast.flat import Gather


def cast(mesh, value, name, cuts, weight=None):
    """A weight that all ranks have cast their shards of, into poisoned bytes."""
    device = mesh.device_type
    weight = flats.poisoned(value, name, device) if weight is None else weight
    master, start = flats.shards(value.to(device), cuts, mesh.get_local_rank())
    nc.quantize_master_weights([weight], [master], [start], mesh.get_group())
    return weight


def gathered(mesh, weight, cuts):
    ranges = [[pair] for pair in itertools.pairwise(cuts)]
    gather = Gather([weight], ranges, mesh.get_group())
    gather.start()
    gather.finish()
    return weight


def equals_whole_cast(mesh, weight, value):
    whole = nc.quantize(value.to(mesh.device_type), weight.format.name)
    return all(same(getattr(weight, name), getattr(whole, name)) for name in BUFFERS)


# ---- 1: everything behind an odd start is a byte early ----


def odd_start(mesh, name):
    value = flats.value_of((64, 128))
    for cut in (4161, 1, 127, 8191):
        cuts = [0, cut, 64 * 128]
        weight = cast(mesh, value, name, cuts)
        assert flats.is_written_rightly(weight, nc.quantize(value.to(weight.device), name))
        assert equals_whole_cast(mesh, gathered(mesh, weight, cuts), value)


@pytest.mark.parametrize(
    "name", [name for name in nc.formats() if nc.format(name).rowwise.element_bits < 8]
)
def test_codes_behind_an_odd_start_are_in_their_places(name, device):
    ranks.run(2, device, odd_start, name)


# ---- 2: slices of a packed gather that are padded apart from the shards leave stale bytes ----


def small_and_packed(mesh, name):
    value = flats.value_of((12, 32), special=False)  # 384 elements: 32 of 192 bytes were stale
    cuts = [0, 192, 384]
    weight = cast(mesh, value, name, cuts)
    poisoned = [(one == flats.POISON).sum() for one in flats.stored(weight).values()]
    assert sum(map(int, poisoned)) > 0  # the other rank's
    assert equals_whole_cast(mesh, gathered(mesh, weight, cuts), value)


def test_no_byte_of_a_packed_gather_is_stale(format, device):
    ranks.run(2, device, small_and_packed, format)


# ---- 3: for an infinite amax another tensor scale, and a second collective ----


def infinite(mesh, name):
    value = flats.value_of((64, 128), special=False)
    value[5, 3] = torch.inf
    cuts = [0, 4161, 64 * 128]
    weight = cast(mesh, value, name, cuts)
    with torch.profiler.profile() as profile:
        cast(mesh, value, name, cuts, weight)
    assert equals_whole_cast(mesh, gathered(mesh, weight, cuts), value)
    return sum(event.name == "c10d::allreduce_" for event in profile.events())


@pytest.mark.parametrize(
    "name",
    [name for name in nc.formats() if nc.format(name).tensor_amax and name != "fp8_e4m3_delayed"],
)
def test_an_infinity_in_one_shard_scales_as_in_the_whole(name, device):
    assert ranks.run(2, device, infinite, name) == [1, 1]


# ---- 4: square blocks are rescaled in rows and columns ----


def squares(mesh):
    value = flats.value_of((64, 128), special=False)
    cuts = [0, 4161, 64 * 128]
    weight = gathered(mesh, cast(mesh, value, "mxfp8_2d", cuts), cuts)
    for scales in (weight.rowwise_scale_inv[:64, :4], weight.columnwise_scale_inv[:2, :128].t()):
        blocks = scales.reshape(-1, 32, scales.shape[1])
        assert (blocks == blocks[:, :1]).all()


def test_square_blocks_keep_one_scale(device):
    ranks.run(2, device, squares)


# ---- 5: amaxes in bfloat16, float32 masters refused, products of sides in 32 bits ----


def fine_masters(mesh, name):
    """Values that bfloat16 would round up to the next power of two, and with it the scale."""
    value = torch.full((64, 128), 448 * (1 - 2**-12))
    cuts = [0, 4161, 64 * 128]
    assert equals_whole_cast(mesh, gathered(mesh, cast(mesh, value, name, cuts), cuts), value)


def test_float32_masters_are_not_rounded(format, device):
    if not nc.format(format).is_delayed:
        ranks.run(2, device, fine_masters, format)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU's memory")
def test_more_elements_than_32_bits_count():
    """On the CPU: tests/runtime/test_flat_shards.cpp."""
    rows, columns = 2**16 + 32, 2**15
    weight = nc.quantize(
        torch.zeros(rows, columns, dtype=torch.bfloat16, device="cuda"),
        "mxfp8_e4m3",
        columnwise=False,
    )
    flats.poison(weight)
    last = torch.randn(1000, device="cuda")
    flat.quantize_master_weights(
        [weight], [torch.cat([torch.zeros(rows * columns - 1000, device="cuda"), last])], [0]
    )
    end = nc.quantize(torch.cat([torch.zeros(columns - 1000, device="cuda"), last]), "mxfp8_e4m3")
    assert same(weight.rowwise_data[-1:], end.rowwise_data)
    assert not (weight.rowwise_data == flats.POISON).any()


# ---- 6: a rank with an empty shard skips the reduction, and its peers hang ----


def empty(mesh, name, which):
    value = flats.value_of((64, 128), special=False)
    cuts = {0: [0, 0, 4161, 8192], 1: [0, 4161, 4161, 8192], 2: [0, 4161, 8192, 8192]}[which]
    weight = cast(mesh, value, name, cuts)
    assert equals_whole_cast(mesh, gathered(mesh, weight, cuts), value)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_an_empty_shard_keeps_nobody_waiting(format, which, device):
    ranks.run(3, device, empty, format, which)


# ---- 7: columnwise bytes of an earlier step ----


def steps(mesh, name):
    cuts, weight = [0, 4161, 64 * 128], None
    for step in range(3):
        value = flats.value_of((64, 128), seed=step, special=False)
        weight = gathered(mesh, cast(mesh, value, name, cuts, weight), cuts)
        delayed = nc.format(name).is_delayed  # its scale is that of earlier steps
        assert delayed or equals_whole_cast(mesh, weight, value)
        both = [weight.dequantize(usage=usage) for usage in ("rowwise", "columnwise")]
        assert not nc.format(name).columnwise_derived or same(*both)


def test_columnwise_bytes_are_of_the_last_step(format, device):
    ranks.run(2, device, steps, format)


# ---- 8: formats of one optimizer group share one output type ----


def two_types(mesh):
    device, names = mesh.device_type, ["fp8_e4m3", "fp8_e5m2"]
    value, cuts = flats.value_of((64, 128), special=False), [0, 4161, 64 * 128]
    pairs = [flats.shards(value.to(device), cuts, mesh.get_local_rank()) for _ in names]
    masters = [torch.nn.Parameter(master) for master, _ in pairs]
    starts = [start for _, start in pairs]
    weights = [flats.poisoned(value, name, device) for name in names]
    optimizer = nc.FusedAdam(masters)
    flat.fuse(optimizer, weights, masters, starts, mesh.get_group())
    for master in masters:
        master.grad = torch.ones_like(master)
    optimizer.step()
    whole = torch.zeros(64 * 128, device=device)
    whole[starts[0] : starts[0] + masters[0].numel()] = masters[0].detach()
    dist.all_reduce(whole, group=mesh.get_group())
    for weight in weights:
        assert equals_whole_cast(mesh, gathered(mesh, weight, cuts), whole.view(64, 128))


def test_element_types_of_one_group_differ(device):
    ranks.run(2, device, two_types)
