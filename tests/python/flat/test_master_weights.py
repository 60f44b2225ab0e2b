"""nc.quantize_master_weights: however weights are cut, all ranks together write the bytes of the
whole cast. What each owner writes is tested in tests/runtime/test_flat_shards.cpp, for many cuts.
"""

import random

import pytest
import torch

import flats
import narrowcast as nc
import ranks
from internals import bytes_of, store_of
from models import BUFFERS, STORAGES, same
from narrowcast import flat

SHAPES = [(36, 52), (64, 128), (4, 4, 256), (128,)]


def shapes_of(format):
    return [shape for shape in SHAPES if flats.holds(format, shape)]


def equal(weight, expected):
    return all(same(getattr(weight, name), getattr(expected, name)) for name in BUFFERS)


OPTIONS = [{}, {"source": "bf16", "rounding": "stochastic", "seed": 2**64 - 1, "step": 3}]


def option_of_weight(options, place):
    """Weight i draws from seed + i."""
    if "seed" not in options:
        return options
    return {**options, "seed": (options["seed"] + place) % 2**64}


# ---- one process ----


@pytest.mark.parametrize("options", OPTIONS, ids=["nearest", "stochastic"])
@pytest.mark.parametrize("name", nc.formats())
def test_one_owner_of_all(name, options, device):
    """The bytes are those of nc.quantize; a delayed scale casts with the multiplier that it has."""
    values = [flats.value_of(shape, seed).to(device) for seed, shape in enumerate(shapes_of(name))]
    weights = [flats.poisoned(value, name, device) for value in values]
    flat.quantize_master_weights(weights, values, [0] * len(weights), **options)
    for place, (weight, value) in enumerate(zip(weights, values, strict=True)):
        expected = nc.quantize(value, name, **option_of_weight(options, place))
        if not nc.format(name).is_delayed or options.get("source") != "bf16":
            assert equal(weight, expected)
        if nc.format(name).is_delayed:
            assert weight.history[2] == weight.tensor_amax  # the newest of two entries
            assert weight.history[3] == expected.tensor_amax and weight.history[4] == 0


@pytest.mark.parametrize("usage", ["rowwise", "columnwise"])
def test_one_usage(format, usage, device):
    """Columnwise alone is refused; rowwise alone stays alone."""
    value = flats.value_of((64, 128)).to(device)
    weight = nc.quantize(value, format, **{usage: True, "columnwise": usage == "columnwise"})
    if usage == "columnwise":
        weight = nc.quantize(value, format, rowwise=False)
        with pytest.raises(ValueError, match="has columnwise bytes alone"):
            nc.quantize_master_weights([weight], [value], [0])
        return
    nc.quantize_master_weights([weight], [2 * value], [0])
    assert weight.columnwise_data is None
    if not nc.format(format).is_delayed:
        assert same(weight.rowwise_data, nc.quantize(2 * value, format).rowwise_data)


# ---- several ranks ----


def every_way_of_cutting(elements, world, row, rng):
    """Lists of where each rank begins, and the end."""
    equal = -(-elements // world)
    yield [min(rank * equal, elements) for rank in range(world)] + [elements]
    yield [0] * world + [elements]
    yield [0] + [elements] * world
    yield [0] + [min(rank, elements) for rank in range(1, world)] + [elements]
    yield [0] + [row * (elements // row // 2)] * (world - 1) + [elements]
    for _ in range(3):
        yield [0, *sorted(rng.randrange(elements + 1) for _ in range(world - 1)), elements]


CASES = [(2, name, OPTIONS[0]) for name in STORAGES]
CASES += [(3, name, OPTIONS[1]) for name in STORAGES]


@pytest.mark.parametrize(("world", "name", "options"), CASES)
@ranks.on("world")
def test_any_cuts(mesh, name, options):
    rank, world, device = mesh.get_local_rank(), mesh.size(), mesh.device_type
    rng = random.Random(world)
    for shape in shapes_of(name)[:2]:
        value = flats.value_of(shape, seed=1)
        for cuts in every_way_of_cutting(value.numel(), world, shape[-1], rng):
            pair = [value, flats.value_of(shape, seed=2, special=False)]
            weights = [flats.poisoned(one, name, device) for one in pair]
            owned = [flats.shards(one.to(device), cuts, rank) for one in pair]
            nc.quantize_master_weights(
                weights, *zip(*owned, strict=True), mesh.get_group(), **options
            )
            for place, (weight, one) in enumerate(zip(weights, pair, strict=True)):
                expected = nc.quantize(one.to(device), name, **option_of_weight(options, place))
                if nc.format(name).is_delayed and "source" in options:
                    continue  # nc.quantize begins a history with the rounded amax
                assert flats.is_written_rightly(weight, expected), (shape, cuts)
                late = nc.format(name).columnwise_derived
                assert bytes_of(weight).has("columnwise") != late
                assert flats.gather(weight, expected), (shape, cuts)
                assert equal(weight, expected)


@ranks.on(2)
def test_formats_together(mesh):
    """Weights of all formats in one call, cut at one place, which is odd."""
    device = mesh.device_type
    values = [flats.value_of((64, 128), seed) for seed in range(len(nc.formats()))]
    pairs = list(zip(values, nc.formats(), strict=True))
    weights = [flats.poisoned(value, name, device) for value, name in pairs]
    cuts = [0, 4161, 64 * 128]
    owned = [flats.shards(value.to(device), cuts, mesh.get_local_rank()) for value in values]
    nc.quantize_master_weights(weights, *zip(*owned, strict=True), mesh.get_group())
    for weight, (value, name) in zip(weights, pairs, strict=True):
        expected = nc.quantize(value.to(device), name)
        assert flats.is_written_rightly(weight, expected), name
        assert flats.gather(weight, expected), name


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU's memory")
def test_more_elements_than_32_bits_count():
    """On the CPU: tests/runtime/test_flat_shards.cpp."""
    rows, columns = 2**16 + 32, 2**15
    zeros = torch.zeros(rows, columns, dtype=torch.bfloat16, device="cuda")
    weight = nc.quantize(zeros, "mxfp8_e4m3", columnwise=False)
    flats.poison(weight)
    last = torch.randn(1000, device="cuda")
    master = torch.cat([torch.zeros(rows * columns - 1000, device="cuda"), last])
    flat.quantize_master_weights([weight], [master], [0])
    end = nc.quantize(torch.cat([torch.zeros(columns - 1000, device="cuda"), last]), "mxfp8_e4m3")
    assert same(weight.rowwise_data[-1:], end.rowwise_data)
    assert not (weight.rowwise_data == flats.POISON).any()


# ---- columnwise bytes that follow ----

DERIVED = [name for name in STORAGES if nc.format(name).columnwise_derived]


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("name", DERIVED)
@ranks.on(2)
def test_columnwise_follows_the_gather(mesh, name, by_hand):
    device, rank = mesh.device_type, mesh.get_local_rank()
    value = flats.value_of((64, 128), special=False)
    weight = nc.quantize(torch.ones(64, 128, device=device), name)
    master, start = flats.shards(value.to(device), [0, 1000, 64 * 128], rank)
    for _ in range(2):
        nc.quantize_master_weights([weight], [master], [start], mesh.get_group(), None, by_hand)
        expected = nc.quantize(value.to(device), name)
        for buffer, one in flats.stored(weight).items():
            one.copy_(flats.stored(expected)[buffer])  # as a gather does
        if by_hand:
            with pytest.raises(ValueError, match=r"call nc\.post_all_gather_processing"):
                weight.columnwise_data  # noqa: B018
            nc.post_all_gather_processing([weight])
        assert same(weight.columnwise_data, expected.columnwise_data)
        assert same(weight.columnwise_scale_inv, expected.columnwise_scale_inv)
        assert store_of(weight).pending is None


def test_shards_of_codes(format, device):
    """fsdp_shard_model_weights get the codes of own elements."""
    value = flats.value_of((64, 128), special=False).to(device)
    weight = nc.quantize(value, format)
    bits = nc.format(format).rowwise.element_bits
    target = torch.zeros(64 * 128 * bits // 8, dtype=torch.uint8, device=device)
    nc.quantize_master_weights([weight], [2 * value], [0], None, [target])
    assert same(target, weight.rowwise_data.view(-1))


# ---- masters ----


def test_masters_of_any_layout(device):
    shape, elements = (64, 128), 64 * 128
    value = flats.value_of(shape, special=False).to(device)
    weight = nc.quantize(value, "mxfp8_e4m3")
    one, exchanged = torch.ones(1, device=device), value.t().contiguous()
    for odd in (one.expand(elements), torch._neg_view(value), exchanged.t()):
        nc.quantize_master_weights([weight], [odd], [0])
        expected = nc.quantize(odd.clone().view(shape), "mxfp8_e4m3")
        assert same(weight.dequantize(), expected.dequantize())


def test_initial_values_are_taken_and_dropped(format, device):
    layer = torch.nn.Linear(128, 64, device=device)
    value = layer.weight.detach().clone()
    flats.convert(layer, format)
    with pytest.raises(ValueError, match="keeps a master of its own"):
        nc.quantize_master_weights([layer.weight], [value], [0])
    initial = layer.weight.get_high_precision_init_val()
    assert same(initial, value.cpu()) and initial.device.type == "cpu"
    before = layer.weight.rowwise_data.clone()
    layer.weight.clear_high_precision_init_val()
    assert layer.weight.get_high_precision_init_val() is None
    assert same(layer.weight.rowwise_data, before)
    nc.quantize_master_weights([layer.weight], [2 * value], [0])
    if not nc.format(format).is_delayed:
        assert same(layer.weight.rowwise_data, nc.quantize(2 * value, format).rowwise_data)
