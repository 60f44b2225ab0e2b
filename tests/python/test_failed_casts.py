"""nc.quantize_master_weights that fails on one rank when the ranks have cast the same weights
before: all that reduce with it raise, none waits, and the calls that follow are of all ranks again.
"""

import contextlib

import pytest
import torch

import flat
import like_a_gpu
import narrowcast as nc
import ranks
from models import same
from narrowcast.zero import plan

SHAPE, N = (64, 128), 64 * 128
INNER, WHOLE = 1001, 32 * 128  # cuts: of a block, and of none

# What is wrong on the last rank: of (weights, masters, offsets).
WRONG = {
    "dtype": lambda w, m, s: (w, [m[0].double()], s),
    "no list": lambda w, m, s: (w[0], m[0], s[0]),
    "nothing": lambda w, m, s: (None, m, s),
    "no weights": lambda w, m, s: ([], [], []),
    "plain": lambda w, m, s: ([torch.ones(SHAPE, device=w[0].device)], m, s),
    "no weight": lambda w, m, s: ([None], m, s),
    "another": lambda w, m, s: ([nc.quantize(w[0].dequantize(), w[0].format.name)], m, s),
    "generator": lambda w, m, s: (iter(w), m, s),
}


class Calls:
    def __init__(self, mesh, name, cut):
        self.mesh, self.name, self.is_wrong = mesh, name, mesh.get_local_rank() == mesh.size() - 1
        self.value = flat.value_of(SHAPE, special=False).to(mesh.device_type)
        self.weight = nc.quantize(torch.zeros_like(self.value), name)
        self.master, self.start = flat.shards(self.value, [0, cut, N], mesh.get_local_rank())

    def call(self, change=None, **options):
        """Its error, if any."""
        arguments = [self.weight], [self.master], [self.start]
        if change is not None and self.is_wrong:
            arguments = change(*arguments)
        try:
            nc.quantize_master_weights(*arguments, self.mesh.get_group(), **options)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return None

    @property
    def is_right(self):
        return flat.gather(self.weight, nc.quantize(self.value, self.name))


def on_one_rank(mesh, which, cut, hear_later):
    with like_a_gpu.hearing() if hear_later else contextlib.nullcontext():
        calls = Calls(mesh, "mxfp8_2d", cut)
        assert calls.call() is None
        before = {key: one.clone() for key, one in flat.stored(calls.weight).items()}
        errors = [calls.call(WRONG[which])]
        unchanged = all(same(one, before[key]) for key, one in flat.stored(calls.weight).items())
        if hear_later:
            errors.append(calls.call())
        calls.master = 2 * calls.master
        calls.value = 2 * calls.value
        assert calls.call() is None, errors
        assert calls.call() is None, errors
        assert calls.is_right
        return errors, unchanged


# Ranks of a GPU hear of what waits for their next call when they make one more than it.
HEARD_LATER = [which for which in WRONG if which not in ("no weights", "another")]


@pytest.mark.parametrize(
    ("which", "hear_later"),
    [*((one, False) for one in WRONG), *((one, True) for one in HEARD_LATER)],
)
def test_one_rank_fails_in_a_later_call(which, hear_later):
    (other, intact), (own, own_intact) = ranks.run(2, "cpu", on_one_rank, which, INNER, hear_later)
    assert intact and own_intact
    kinds = ("DisagreementError", "rank 1")
    assert any(error and all(word in error for word in kinds) for error in other), other
    assert own[0].startswith(("TypeError", "ValueError", "DisagreementError")), own
    if hear_later:  # all raise in the same call, which is the next one
        assert (other[0], own[1]) == (None, other[1])


def test_one_rank_fails_where_nothing_is_reduced():
    """The others go on, and all are together in the calls that follow."""
    (other, _), (own, intact) = ranks.run(2, "cpu", on_one_rank, "dtype", WHOLE, False)
    assert other == [None] and own[0].startswith("TypeError") and intact


def twice_wrong(mesh):
    """A GPU's ranks hear of the first failure when the second call fails, too."""
    with like_a_gpu.hearing():
        calls = Calls(mesh, "nvfp4", INNER)
        errors = [calls.call(change) for change in (None, WRONG["dtype"], WRONG["dtype"], None)]
        assert calls.is_right
        return errors


def test_one_rank_fails_twice():
    other, own = ranks.run(2, "cpu", twice_wrong)
    assert [error is None for error in other] == [True, True, False, True]
    assert [error is None for error in own] == [True, False, False, True]


def fails_within(mesh, name):
    """A launch fails on the last rank before ranks reduce."""
    calls = Calls(mesh, name, INNER)
    assert calls.call(manual_post_all_gather_processing=True) is None
    nc.post_all_gather_processing([calls.weight])
    before = {key: one.clone() for key, one in flat.stored(calls.weight).items()}
    collect = plan.Plan.collect
    if calls.is_wrong:
        plan.Plan.collect = failing
    try:
        error = calls.call(manual_post_all_gather_processing=True)
    finally:
        plan.Plan.collect = collect
    assert flat.stored(calls.weight).keys() == before.keys()  # columnwise bytes are there
    if not nc.format(name).is_delayed:
        assert all(same(one, before[key]) for key, one in flat.stored(calls.weight).items())
    assert calls.call() is None
    return error


def failing(self, *arguments):
    raise OSError("out of paper")


def test_a_launch_that_fails(format):
    other, own = ranks.run(2, "cpu", fails_within, format)
    assert own == "OSError: out of paper"
    if other is not None:  # None where nothing is reduced
        assert "failed on rank 1" in other
        said = "may have been cast" if nc.format(format).is_delayed else "no rank has changed its"
        assert said in other


def another_list(mesh):
    """First calls of a group that reduces already, on all ranks, and wrong on one."""
    first, second = (Calls(mesh, "nvfp4", cut) for cut in (INNER, 3 * INNER))
    assert first.call() is None
    assert second.call() is None
    third = Calls(mesh, "mxfp4", 2 * INNER)
    errors = [third.call(WRONG["dtype"]), third.call(WRONG["plain"])]
    assert [first.call(), second.call(), third.call(), first.call()] == [None] * 4
    assert first.is_right and second.is_right and third.is_right
    return errors


def test_first_calls_of_more_weights():
    other, own = ranks.run(2, "cpu", another_list)
    assert all("failed on rank 1 of the group: TypeError" in error for error in other), other
    assert all(error.startswith("TypeError") for error in own)


def test_what_is_no_offset_and_no_target(device):
    value = flat.value_of(SHAPE, special=False).to(device)
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


def cut_short(count):
    def make(tensor):
        tensor.untyped_storage().resize_(count)
        return tensor

    return make


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (cut_short(0), f"takes bytes 0 to {N} of a storage of 0"),
        (cut_short(100), f"takes bytes 0 to {N} of a storage of 100"),
        (lambda tensor: tensor[:1].expand(N), r"is to be .* contiguous"),
    ],
)
def test_targets_that_cannot_be_written_to(change, words, device):
    value = flat.value_of(SHAPE, special=False).to(device)
    weight = nc.quantize(torch.zeros_like(value), "mxfp8_e4m3")
    target = change(torch.zeros(N, dtype=torch.uint8, device=device))
    with pytest.raises(ValueError, match=f"weight 0: fsdp_shard_model_weights {words}"):
        nc.quantize_master_weights([weight], [value], [0], None, [target])
    assert not weight.dequantize().any()


def test_a_master_shard_of_freed_memory(device):
    for step in (1, 2):
        master = torch.ones(step * N, device=device)[::step]
        cut_short(100)(master)
        weight = nc.quantize(torch.zeros(SHAPE, device=device), "mxfp8_e4m3")
        with pytest.raises(ValueError, match=r"master shard .* storage"):
            nc.quantize_master_weights([weight], [master], [0])
        assert not weight.dequantize().any()


def fails_while_planned(mesh):
    """The last rank has no memory for a plan, once all have told each other what they own."""
    calls = Calls(mesh, "mxfp8_2d", INNER)
    made = plan.Plan.__init__
    if calls.is_wrong:
        plan.Plan.__init__ = failing
    try:
        error = calls.call()
    finally:
        plan.Plan.__init__ = made
    assert calls.call() is None and calls.is_right
    return error


def test_a_plan_that_cannot_be_made():
    other, own = ranks.run(2, "cpu", fails_while_planned)
    assert "rank 1" in other and "out of paper" in other and own == "OSError: out of paper"
