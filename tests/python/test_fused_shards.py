"""FusedAdam over flat shards of masters, as Megatron's distributed optimizer has them: masters,
moments and bytes of all ranks together are those of one process that has the whole weights.
"""

import random

import pytest
import torch
import torch.distributed as dist

import flat
import narrowcast as nc
import ranks
from models import BUFFERS, same
from narrowcast import zero

SHAPES = [(36, 52), (64, 128), (128, 64)]
STEPS = 3


def shapes_of(format):
    return SHAPES if nc.format(format).rowwise.element_bits == 8 else SHAPES[1:]


def gradient_of(shape, step, seed):
    generator = torch.Generator().manual_seed(1000 * step + seed)
    return torch.randn(shape, generator=generator)


class Whole:
    """The weights in one process, each a layer's, under FusedAdam."""

    def __init__(self, values, name, options):
        self.layers = [torch.nn.Linear(*value.shape[::-1], bias=False) for value in values]
        for layer, value in zip(self.layers, values, strict=True):
            layer.weight.data.copy_(value)
        nc.convert(torch.nn.Sequential(*self.layers), name)
        self.weights = [layer.weight for layer in self.layers]
        self.optimizer = nc.FusedAdam(self.weights, **options)

    def step(self, gradients):
        for weight, gradient in zip(self.weights, gradients, strict=True):
            weight.grad = gradient
        self.optimizer.step()


class Flat:
    """A rank's shards of them. `cuts`: where ranks begin, and the end, of each weight."""

    def __init__(self, mesh, values, name, cuts, options, **fuse_options):
        device, self.rank = mesh.device_type, mesh.get_local_rank()
        self.cuts = cuts
        self.weights = [flat.poisoned(value, name, device) for value in values]
        pairs = [
            flat.shards(value.to(device), of_weight, self.rank)
            for value, of_weight in zip(values, cuts, strict=True)
        ]
        self.masters = [one if one is None else torch.nn.Parameter(one) for one, _ in pairs]
        own = [one for one in self.masters if one is not None]
        self.optimizer = nc.FusedAdam([{"params": own}], **options)
        starts = [start for _, start in pairs]
        group = mesh.get_group()
        zero.fuse(self.optimizer, self.weights, self.masters, starts, group, **fuse_options)

    def step(self, gradients):
        for master, gradient, cuts in zip(self.masters, gradients, self.cuts, strict=True):
            if master is not None:
                own = None if gradient is None else flat.shards(gradient, cuts, self.rank)[0]
                master.grad = None if own is None else own.to(master.device)
        self.optimizer.step()

    def fault(self, whole):
        """Empty, or what is not as in the whole."""
        for place, (weight, expected) in enumerate(zip(self.weights, whole.weights, strict=True)):
            if not flat.is_written_rightly(weight, to_device(expected, weight.device)):
                return f"weight {place} has other bytes"
            if weight.history is not None and not same(weight.history.cpu(), expected.history):
                return f"weight {place} has another history"
            if self.masters[place] is None:
                continue
            state, of_whole = (
                one.optimizer.state[key]
                for one, key in ((self, self.masters[place]), (whole, expected))
            )
            begin, end = self.cuts[place][self.rank : self.rank + 2]
            if not same_numbers(self.masters[place], expected.master.view(-1)[begin:end]):
                return f"weight {place} has another master"
            for moment in ("exp_avg", "exp_avg_sq"):
                if not same_numbers(state[moment], of_whole[moment].view(-1)[begin:end]):
                    return f"weight {place} has another {moment}"
            assert state["step"] == of_whole["step"]
        return ""


def same_numbers(some, others):
    """Of float32, bit for bit; but the bits of a NaN are the machine's."""
    on_cpu = (one.detach().cpu() for one in (some, others))
    return same(*(torch.where(one.isnan(), torch.nan, one) for one in on_cpu))


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


def train(mesh, name, options, seed):
    rng = random.Random(seed)
    values = [flat.value_of(shape, seed=place) for place, shape in enumerate(shapes_of(name))]
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
            assert weight._store.bytes.has("columnwise") != derived
            on_device = to_device(expected, mesh.device_type)
            assert flat.gather(weight, on_device, mesh.get_group()), (cuts, step)
            assert all(same(getattr(weight, one), getattr(on_device, one)) for one in BUFFERS)
            flat.poison(weight)


def to_device(weight, device):
    return weight.detach().to(device)


NEAREST, STOCHASTIC = {"lr": 0.05}, {"lr": 0.05, "rounding": "stochastic", "seed": 2**64 - 1}


@pytest.mark.parametrize("name", nc.formats())
def test_two_ranks(name, device):
    ranks.run(2, device, train, name, NEAREST, 5)


@pytest.mark.parametrize("seed", [1, 2])
def test_three_ranks(format, seed, device):
    ranks.run(3, device, train, format, STOCHASTIC, seed)


def test_one_process(format, device):
    ranks.run(1, device, train, format, STOCHASTIC, 1)


# ---- gradients that are missing ----


def without_some(mesh, name):
    """No rank has one of weight 1 in the second step."""
    values = [flat.value_of((64, 128), seed=place, special=False) for place in range(3)]
    cuts = [[0, 1001, 64 * 128], [0, 4097, 64 * 128], [0, 64 * 128, 64 * 128]]
    whole, parts = Whole(values, name, NEAREST), Flat(mesh, values, name, cuts, NEAREST)
    for step in range(2):
        gradients = [gradient_of(v.shape, step, place) for place, v in enumerate(values)]
        if step == 1:
            gradients[1] = None
        parts.step(gradients)
        whole.step(gradients)
    return parts.fault(whole)


def test_weights_without_a_gradient_stay(format, device):
    assert ranks.run(2, device, without_some, format) == ["", ""]


def error_of(function, *arguments):
    """What a call raises: its kind and its words."""
    try:
        function(*arguments)
    except Exception as error:
        return type(error).__name__, str(error)
    return None


def lone_gradient(mesh, name):
    values = [flat.value_of((64, 128), special=False)]
    parts = Flat(mesh, values, name, [[0, 1001, 64 * 128]], NEAREST)
    gradients = [gradient_of((64, 128), 0, 0)]
    # A GPU tells of a step when the next one begins.
    errors = [error_of(parts.step, gradients if parts.rank == 0 else [None]) for _ in range(2)]
    return next(error for error in errors if error is not None)


def test_a_gradient_on_one_rank_alone(device):
    errors = ranks.run(2, device, lone_gradient, "nvfp4")
    for kind, words in errors:
        assert kind == "DisagreementError"
        assert "some ranks had a gradient of their shard and some had none" in words


# ---- steps that fail ----


def failing(mesh, name):
    values = [flat.value_of((64, 128), special=False)]
    parts = Flat(mesh, values, name, [[0, 1001, 64 * 128]], NEAREST)
    gradients = [gradient_of((64, 128), 0, 0)]
    parts.step(gradients)
    before = {key: one.clone() for key, one in flat.stored(parts.weights[0]).items()}
    if parts.rank == 1:
        parts.optimizer.param_groups[0]["lr"] = -1.0
    errors = [error_of(parts.step, gradients) for _ in range(2)]
    changed = not all(same(one, before[key]) for key, one in flat.stored(parts.weights[0]).items())
    return errors, changed and parts.rank == 1


def test_a_step_that_fails_on_one_rank(device):
    (first, _), (second, changed) = ranks.run(2, device, failing, "nvfp4")
    said = [words for error in first if error is not None for words in error]
    assert any("FusedAdam's step failed on rank 1 of the group" in words for words in said)
    assert "lr -1.0" in second[0][1] and not changed


def other_seeds(mesh):
    options = {**STOCHASTIC, "seed": mesh.get_local_rank()}
    values = [flat.value_of((64, 128), special=False)]
    parts = Flat(mesh, values, "nvfp4", [[0, 1001, 64 * 128]], options)
    errors = [error_of(parts.step, [gradient_of((64, 128), 0, 0)]) for _ in range(2)]
    return next(error for error in errors if error is not None)


def test_ranks_with_other_seeds(device):
    errors = ranks.run(2, device, other_seeds)
    for kind, words in errors:
        assert kind == "DisagreementError"
        assert "the ranks' groups differ in rounding or seed" in words


# ---- weights that are somewhere else, and with other optimizers ----


def test_weights_that_move(format):
    """Their new bytes are those that the next step writes."""
    ranks.run(1, "cpu", moved, format)


def moved(mesh, name):
    values = [flat.value_of((64, 128), special=False)]
    whole, parts = Whole(values, name, NEAREST), Flat(mesh, values, name, [[0, 8192]], NEAREST)
    for step in range(2):
        gradients = [gradient_of((64, 128), step, 0)]
        whole.step(gradients)
        parts.step(gradients)
        store = parts.weights[0]._store
        store.bytes = store.map(torch.clone).bytes
    assert parts.fault(whole) == ""


WRONG = {
    "kind": (TypeError, "not a narrowcast.FusedAdam"),
    "shape": (ValueError, "one dimension, contiguous, is needed"),
    "parameter": (ValueError, "is no parameter of the optimizer"),
    "twice": (ValueError, "has been fused with this optimizer already"),
    "master": (ValueError, "is fused with another weight already"),
    "range": (ValueError, "are not all among the"),
}


def wrong(mesh, which):
    """On rank 1 alone."""
    value, is_wrong = flat.value_of((64, 64), special=False), mesh.get_local_rank() == 1
    device = mesh.device_type
    weight = nc.quantize(value.to(device), "nvfp4")
    own, start = flat.shards(value.to(device), [0, 1000, 64 * 64], mesh.get_local_rank())
    master = torch.nn.Parameter(own)
    optimizer = nc.FusedAdam([master])
    weights, masters, starts = [weight], [master], [start]
    if which in ("twice", "master"):
        zero.fuse(optimizer, weights, masters, starts, mesh.get_group())
        if not is_wrong:
            master = torch.nn.Parameter(own.clone())
            optimizer, masters = nc.FusedAdam([master]), [master]
        if which == "master":
            weights = [nc.quantize(value.to(device), "nvfp4")]
    if is_wrong and which == "kind":
        optimizer = torch.optim.Adam([master])
    if is_wrong and which == "shape":
        masters = [torch.nn.Parameter(own.view(-1, 1))]
    if is_wrong and which == "parameter":
        masters = [torch.nn.Parameter(own.clone())]
    if is_wrong and which == "range":
        starts = [start + 1]
    return error_of(zero.fuse, optimizer, weights, masters, starts, mesh.get_group())


@pytest.mark.parametrize("which", WRONG)
def test_one_error_on_every_rank(which, device):
    other, own = ranks.run(2, device, wrong, which)
    kind, words = WRONG[which]
    assert own[0] == kind.__name__ and words in own[1]
    assert other[0] == "DisagreementError" and "fuse failed on rank 1" in other[1]
    assert words in other[1]


def count_reductions(mesh, name, cuts):
    """Of a step; any other collective fails it."""
    values = [flat.value_of((512, 64), special=False)] * 3
    parts = Flat(mesh, values, name, [cuts] * 3, NEAREST)
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
    return sum(event.name == "c10d::allreduce_" for event in profile.events())


def test_cuts_of_whole_blocks_reduce_nothing_without_tensor_scales(format, device):
    row = nc.format(format).row_step * 64
    counted = ranks.run(2, device, count_reductions, format, [0, row, 512 * 64])
    assert counted == [int(nc.format(format).tensor_amax)] * 2


def test_other_cuts_reduce_once(format, device):
    counted = ranks.run(2, device, count_reductions, format, [0, 64 * 101 + 7, 512 * 64])
    assert counted == [1, 1]
