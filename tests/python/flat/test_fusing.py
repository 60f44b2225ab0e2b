"""FusedAdam over flat shards of masters, as Megatron's distributed optimizer has them: masters,
moments and bytes of all ranks together are those of one process that has the whole weights; what is
wrong is refused.
"""

import random

import pytest
import torch
import torch.distributed as dist

import flats
import narrowcast as nc
import ranks
from fused import NEAREST, STOCHASTIC, Flat, Whole, gradient_of, to_device
from internals import bytes_of
from models import BUFFERS, GATHERS, STORAGES, same
from narrowcast import flat
from weights import quantized

SHAPES = [(36, 52), (64, 128), (128, 64)]


STEPS = 3


def shapes_of(format):
    return SHAPES if nc.format(format).rowwise.element_bits == 8 else SHAPES[1:]


def cuts_of(values, world, rng):
    """Odd ones, whole rows, and a rank with nothing."""
    cuts = []
    for place, value in enumerate(values):
        elements, row = value.numel(), value.shape[-1]
        places = sorted(rng.randrange(elements + 1) for _ in range(world - 1))
        if place == 1:
            places = [row * (elements // row // 2)] * (world - 1)
        cuts.append([0, *places, elements])
    return cuts


CASES = [(2, name, NEAREST, 5) for name in STORAGES]
CASES += [(3, name, STOCHASTIC, 1 + place % 2) for place, name in enumerate(STORAGES)]
CASES += [(1, name, STOCHASTIC, 1) for name in GATHERS]


@pytest.mark.parametrize(("world", "name", "options", "seed"), CASES)
@ranks.on("world")
def test_any_cuts(mesh, name, options, seed):
    rng = random.Random(seed)
    values = [flats.value_of(shape, seed=place) for place, shape in enumerate(shapes_of(name))]
    cuts = cuts_of(values, mesh.size(), rng)
    whole = Whole(values, name, options)
    parts = Flat(mesh, values, name, cuts, options)
    for step in range(STEPS):
        gradients = [gradient_of(v.shape, step, place) for place, v in enumerate(values)]
        whole.step(gradients)
        parts.step(gradients)
        assert not (fault := parts.fault(whole)), (fault, cuts, step)
        for weight, expected in zip(parts.weights, whole.weights, strict=True):
            derived = nc.format(name).columnwise_derived
            assert bytes_of(weight).has("columnwise") != derived
            on_device = to_device(quantized(expected), mesh.device_type)
            assert flats.gather(weight, on_device, mesh.get_group()), (cuts, step)
            assert all(same(getattr(weight, one), getattr(on_device, one)) for one in BUFFERS)
            flats.poison(weight)


# ---- gradients that are missing ----


@ranks.on(2)
def test_weights_without_a_gradient_stay(mesh, format):
    """No rank has one of weight 1 in the second step."""
    values = [flats.value_of((64, 128), seed=place, special=False) for place in range(3)]
    cuts = [[0, 1001, 64 * 128], [0, 4097, 64 * 128], [0, 64 * 128, 64 * 128]]
    whole, parts = Whole(values, format, NEAREST), Flat(mesh, values, format, cuts, NEAREST)
    for step in range(2):
        gradients = [gradient_of(v.shape, step, place) for place, v in enumerate(values)]
        if step == 1:
            gradients[1] = None
        parts.step(gradients)
        whole.step(gradients)
    assert not (fault := parts.fault(whole)), fault


@ranks.on(2)
def test_who_owns_nothing_keeps_scales_without_a_gradient(mesh, format):
    """Nobody has a gradient in the second step, and the last rank owns nothing."""
    values = [flats.value_of((64, 128), special=False)]
    whole = Whole(values, format, NEAREST)
    parts = Flat(mesh, values, format, [[0, 64 * 128, 64 * 128]], NEAREST)
    for step in range(3):
        gradients = [None if step == 1 else gradient_of((64, 128), step, 0)]
        parts.step(gradients)
        whole.step(gradients)
        assert not (fault := parts.fault(whole)), (step, fault)


# ---- several formats ----


@ranks.on(2)
def test_element_types_of_one_group_differ(mesh):
    """In one group of the optimizer, of one value."""
    device, group, names = mesh.device_type, mesh.get_group(), ["fp8_e4m3", "fp8_e5m2"]
    value, cuts = flats.value_of((64, 128), special=False), [0, 4161, 64 * 128]
    pairs = [flats.shards(value.to(device), cuts, mesh.get_local_rank()) for _ in names]
    masters = [torch.nn.Parameter(master) for master, _ in pairs]
    starts = [start for _, start in pairs]
    weights = [flats.poisoned(value, name, device) for name in names]
    optimizer = nc.FusedAdam(masters)
    flat.fuse(optimizer, weights, masters, starts, group)
    for master in masters:
        master.grad = torch.ones_like(master)
    optimizer.step()
    whole = torch.zeros(64 * 128, device=device)
    whole[starts[0] : starts[0] + masters[0].numel()] = masters[0].detach()
    dist.all_reduce(whole, group=group)
    for weight, name in zip(weights, names, strict=True):
        assert flats.gather(weight, nc.quantize(whole.view(64, 128), name), group)


# ---- what is reduced ----


@pytest.mark.parametrize("are_whole", [True, False])
@ranks.on(2)
def test_reductions_of_a_step(mesh, format, are_whole):
    """Cuts of whole blocks reduce what spans tensors alone; any other collective fails the step."""
    f, values = nc.format(format), [flats.value_of((512, 64), special=False)] * 3
    cut = f.row_step * 64 if are_whole else 64 * 101 + 7
    parts = Flat(mesh, values, format, [[0, cut, 512 * 64]] * 3, NEAREST)
    gradients = [gradient_of((512, 64), 0, 0)] * 3
    parts.step(gradients)
    kinds = ("all_reduce", "all_gather", "all_gather_object")
    everything = {what: getattr(dist, what) for what in kinds}
    for what in everything:
        setattr(dist, what, None)
    try:
        with torch.profiler.profile() as profile:
            parts.step(gradients)
    finally:
        for what, function in everything.items():
            setattr(dist, what, function)
    counted = sum(event.name == "c10d::allreduce_" for event in profile.events())
    assert counted == (not are_whole or f.tensor_amax)


def test_a_master_that_no_optimizer_has(device):
    value = flats.value_of((64, 64), special=False).to(device)
    master = torch.nn.Parameter(value.view(-1).clone())
    optimizer = nc.FusedAdam([torch.nn.Parameter(master.detach().clone())])
    with pytest.raises(ValueError, match="is no parameter of the optimizer"):
        flat.fuse(optimizer, [nc.quantize(value, "nvfp4")], [master], [0])


# ---- masters that are no parameters of torch's, or no longer the optimizer's ----


@pytest.mark.parametrize("name", ["fp8_e4m3", "fp8_e4m3_delayed", "nvfp4"])
@ranks.on(2)
def test_masters_without_requires_grad(mesh, name):
    """As ZeRO's are: nothing changes anywhere, whoever owns what, where no rank has a gradient, as
    in the second step, of two weights, of which rank 1 owns nothing of the second.
    """
    values = [flats.value_of((64, 128), seed=seed, special=False) for seed in range(2)]
    cuts = [[0, 1001, 64 * 128], [0, 64 * 128, 64 * 128]]
    parts = Flat(mesh, values, name, cuts, NEAREST)
    for master in parts.masters:
        if master is not None:
            master.requires_grad_(False)
    parts.step([gradient_of((64, 128), 0, seed) for seed in range(2)])
    before = [{k: v.clone() for k, v in flats.stored(one).items()} for one in parts.weights]
    for _ in range(2):
        parts.step([None, None])
    for old, weight in zip(before, parts.weights, strict=True):
        new = flats.stored(weight)
        assert all(same(old[key], new[key]) for key in old)


@pytest.mark.parametrize("name", ["fp8_e4m3", "mxfp8_e4m3", "nvfp4"])
@ranks.on(2)
def test_a_master_that_leaves_its_group_stays(mesh, name):
    """The second of two masters is taken out of its group, on all ranks."""
    values = [flats.value_of((64, 128), seed=seed, special=False) for seed in range(2)]
    parts = Flat(mesh, values, name, [[0, 1001, 64 * 128]] * 2, NEAREST)
    gradients = [gradient_of((64, 128), 0, seed) for seed in range(2)]
    parts.step(gradients)
    before = parts.masters[1].detach().clone(), flats.stored(parts.weights[1])
    stored = {key: one.clone() for key, one in before[1].items()}
    parts.optimizer.param_groups[0]["params"] = parts.masters[:1]
    first = parts.masters[0].detach().clone()
    parts.step(gradients)
    assert not same(first, parts.masters[0])
    assert same(before[0], parts.masters[1])
    assert all(same(one, stored[key]) for key, one in flats.stored(parts.weights[1]).items())


def test_two_roundings_of_one_format():
    values = [flats.value_of((64, 128), seed=seed, special=False) for seed in range(2)]
    gradients = [gradient_of((64, 128), 0, seed) for seed in range(2)]
    parts = Flat(None, values, "nvfp4", [[0, 64 * 128]] * 2, NEAREST)
    (group,) = parts.optimizer.param_groups
    group["params"] = parts.masters[:1]
    other = {**group, "params": parts.masters[1:], "rounding": "stochastic"}
    parts.optimizer.param_groups.append(other)
    with pytest.raises(ValueError, match="one rounding"):
        parts.step(gradients)
