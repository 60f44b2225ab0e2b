"""nc.quantize_master_weights that fails when the same weights were cast before: an error, no weight
has changed, and the calls that follow are right.
"""

import pytest
import torch

import flats
import narrowcast as nc
import ranks
from models import same
from narrowcast.flat import plan
from narrowcast.ranks import reduction

SHAPE, N = (64, 128), 64 * 128
INNER = 1001  # a cut of a block

# What is wrong: of (weights, masters, offsets).
WRONG = {
    "dtype": lambda w, m, s: (w, [m[0].double()], s),
    "no list": lambda w, m, s: (w[0], m[0], s[0]),
    "nothing": lambda w, m, s: (None, m, s),
    "plain": lambda w, m, s: ([torch.ones(SHAPE, device=w[0].device)], m, s),
    "no weight": lambda w, m, s: ([None], m, s),
    "generator": lambda w, m, s: (iter(w), m, s),
    "fewer elements": lambda w, m, s: (w, [m[0][:-1]], s),
}


class Calls:
    """Of one weight, which all ranks own together, or this process alone."""

    def __init__(self, name, mesh=None, device="cpu"):
        self.name, self.group = name, mesh and mesh.get_group()
        self.value = flats.value_of(SHAPE, special=False).to(device)
        self.weight = nc.quantize(torch.zeros_like(self.value), name)
        cuts, rank = ([0, INNER, N], mesh.get_local_rank()) if mesh else ([0, N], 0)
        self.master, self.start = flats.shards(self.value, cuts, rank)

    def call(self, change=lambda *arguments: arguments, **options):
        arguments = change([self.weight], [self.master], [self.start])
        nc.quantize_master_weights(*arguments, self.group, **options)

    def stored(self):
        return {key: one.clone() for key, one in flats.stored(self.weight).items()}

    def is_unchanged(self, before):
        now = flats.stored(self.weight)
        return now.keys() == before.keys() and all(same(now[key], before[key]) for key in now)


@pytest.mark.parametrize("which", WRONG)
def test_wrong_arguments_in_a_later_call(which, device):
    calls = Calls("mxfp8_2d", device=device)
    calls.call()
    before = calls.stored()
    with pytest.raises((TypeError, ValueError)):
        calls.call(WRONG[which])
    assert calls.is_unchanged(before)
    calls.master = 2 * calls.master
    calls.call()
    expected = nc.quantize(2 * calls.value, "mxfp8_2d")
    assert all(same(one, flats.stored(expected)[key]) for key, one in calls.stored().items())


def fails_within(mesh, name):
    """The reduction fails on all ranks."""
    all_reduce, fails = reduction._all_reduce, False

    def breakable(*arguments):
        begin = all_reduce(*arguments)
        return lambda: failing() if fails else begin()

    reduction._all_reduce = breakable
    calls = Calls(name, mesh, mesh.device_type)
    try:
        calls.call(manual_post_all_gather_processing=True)
    finally:
        reduction._all_reduce = all_reduce
    nc.post_all_gather_processing([calls.weight])
    before, fails = calls.stored(), True
    reduces = plan.plan_of(calls.weight).exchange.is_collective
    if reduces:
        with pytest.raises(OSError, match="out of paper"):
            calls.call(manual_post_all_gather_processing=True)
        assert calls.is_unchanged(before) or nc.format(name).is_delayed
        assert flats.stored(calls.weight).keys() == before.keys()  # columnwise bytes are there
    fails = False
    calls.call()
    return reduces


def failing(*arguments):
    raise OSError("out of paper")


def test_a_reduction_that_fails(format, device):
    one, other = ranks.run(2, device, fails_within, format)
    assert one == other


def test_what_is_no_offset_and_no_target(device):
    value = flats.value_of(SHAPE, special=False).to(device)
    weight = nc.quantize(value, "mxfp8_e4m3")
    for start in (True, 1.0, "0"):
        with pytest.raises(TypeError, match="its offset is"):
            nc.quantize_master_weights([weight], [value], [start])
    nc.quantize_master_weights([weight], [value], [torch.tensor(0)])
    one, exchanged = torch.ones(1, device=device), value.t().contiguous()
    for odd in (one.expand(N), torch._neg_view(value), exchanged.t()):
        nc.quantize_master_weights([weight], [odd], [0])
        expected = nc.quantize(odd.clone().view(SHAPE), "mxfp8_e4m3")
        assert same(weight.dequantize(), expected.dequantize())
    target = torch.zeros(N, dtype=torch.uint8, device="meta")
    with pytest.raises(ValueError, match="fsdp_shard_model_weights on meta"):
        nc.quantize_master_weights([weight], [value], [0], None, [target])
    with pytest.raises(TypeError, match="Tensor as its fsdp_shard_model_weights"):
        nc.quantize_master_weights([weight], [value], [0], None, target)
    with pytest.raises(TypeError, match="got a tensor"):
        nc.post_all_gather_processing(weight)


def test_a_target_that_is_not_contiguous(device):
    value = flats.value_of(SHAPE, special=False).to(device)
    weight = nc.quantize(torch.zeros_like(value), "mxfp8_e4m3")
    target = torch.zeros(1, dtype=torch.uint8, device=device).expand(N)
    words = r"weight 0: fsdp_shard_model_weights is to be .* contiguous"
    with pytest.raises(ValueError, match=words):
        nc.quantize_master_weights([weight], [value], [0], None, [target])
    assert not weight.dequantize().any()


def fails_while_planned(mesh):
    """No rank has memory for a plan, once all have exchanged what they own: the next call is a
    first one.
    """
    calls, made = Calls("mxfp8_2d", mesh), plan.Plan.__init__
    plan.Plan.__init__ = failing
    try:
        with pytest.raises(OSError, match="out of paper"):
            calls.call()
    finally:
        plan.Plan.__init__ = made
    calls.call()
    assert flats.gather(calls.weight, nc.quantize(calls.value, calls.name))


def test_a_plan_that_cannot_be_made():
    ranks.run(2, "cpu", fails_while_planned)
