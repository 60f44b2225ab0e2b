"""Several lists of weights of one process group, whose reductions are of different sizes: a rank
that hands in another one than the others is an error on all, and none waits for what never comes.
"""

import contextlib

import pytest
import torch
import torch.distributed as dist

import flat
import like_a_gpu
import narrowcast as nc
import ranks
from models import STORAGES, same

SHAPES = (192, 64), (64, 64), (512, 64), (64, 128)
TESTED_FORMATS = STORAGES


def calls_with_lists(mesh, name, shapes=SHAPES):
    """The arguments of a call for each list of one weight, after the first calls; and values."""
    rank, device = mesh.get_local_rank(), mesh.device_type
    calls, values = [], []
    for place, shape in enumerate(shapes):
        value = flat.value_of(shape, seed=place, special=False).to(device)
        inner = (value.numel() * one // mesh.size() - 24 for one in range(1, mesh.size()))
        cuts = [0, *inner, value.numel()]
        master, start = flat.shards(value, cuts, rank)
        calls.append(([nc.quantize(value, name)], [master], [start], mesh.get_group()))
        values.append(value)
    return calls, values


def message_of(call):
    try:
        nc.quantize_master_weights(*call)
    except (TypeError, ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def again(calls, values, name):
    """Whether all ranks that call alike make the bytes of the whole weights."""
    for call in calls:
        nc.quantize_master_weights(*call)
    return all(
        flat.gather(call[0][0], nc.quantize(value, name))
        for call, value in zip(calls, values, strict=True)
    )


def in_two_orders(mesh, name):
    calls, values = calls_with_lists(mesh, name)
    for call in calls:
        nc.quantize_master_weights(*call)
    said = []
    for call in calls if mesh.get_local_rank() == 0 else calls[::-1]:
        before = call[0][0].rowwise_data.clone()
        said.append(message_of(call))
        assert same(call[0][0].rowwise_data, before)
    return said, again(calls, values, name)


@pytest.mark.parametrize("name", [n for n in STORAGES if not nc.format(n).is_delayed])
def test_lists_in_two_orders(name):
    for said, is_right in ranks.run(2, "cpu", in_two_orders, name):
        assert all("lists of weights in different orders" in one for one in said)
        assert is_right


def unknown(mesh, name, place):
    """The last rank hands in a list for the first time, the others one that they know."""
    calls, values = calls_with_lists(mesh, name, (*SHAPES, SHAPES[0]))
    *known, new = calls
    for call in known:
        nc.quantize_master_weights(*call)
    is_other = mesh.get_local_rank() == mesh.size() - 1
    said = message_of(new if is_other else known[place])
    if mesh.device_type == "cuda":  # whose ranks hear of it with the next call
        later = message_of(known[place])
        said = said or later
    return said, again(calls, values, name)


@pytest.mark.parametrize("place", range(len(SHAPES)))
@pytest.mark.parametrize("name", [n for n in STORAGES if not nc.format(n).is_delayed])
def test_a_list_that_the_others_do_not_hand_in(name, place, device):
    for said, is_right in ranks.run(2, device, unknown, name, place):
        assert "DisagreementError" in said
        assert is_right


MISTAKE, ROUNDS = len(SHAPES) + 1, 7


def in_turn(mesh, name, hear_later, mistake):
    """Lists in turn, each time of other masters. Once the last rank hands in something else.
    Returns in which calls of each rank there was an error, and whether the last bytes are right.
    """
    with like_a_gpu.hearing() if hear_later else contextlib.nullcontext():
        calls, values = calls_with_lists(mesh, name, (*SHAPES, SHAPES[0]))
        *known, new = calls
        others = {"new": new, "known": known[-1], "nonsense": ([3], [None], [None], new[3])}
        is_other = mesh.get_local_rank() == mesh.size() - 1
        errors = []
        for number in range(ROUNDS * len(known)):
            weights, (master,), *rest = known[number % len(known)]
            call = weights, [(1 + number) * master], *rest
            wrong = is_other and number == MISTAKE
            if message_of(others[mistake] if wrong else call) is not None:
                errors.append(number)
        last = range((ROUNDS - 1) * len(known), ROUNDS * len(known))
        return errors, all(
            flat.gather(call[0][0], nc.quantize((1 + number) * value, name))
            for number, call, value in zip(last, known, values, strict=False)
        )


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("hear_later", [False, True])
@pytest.mark.parametrize("mistake", ["new", "known", "nonsense"])
def test_mistakes_while_lists_take_turns(mistake, world, hear_later, device):
    if device == "cuda" and (hear_later or world > torch.cuda.device_count()):
        pytest.skip("for the CPU, or too few GPUs")
    results = ranks.run(world, device, in_turn, STORAGES[0], hear_later, mistake)
    *others, (own, _) = results
    assert all(is_right for _, is_right in results)
    later = MISTAKE + len(SHAPES) if hear_later or device == "cuda" else MISTAKE
    if mistake == "known":  # a list of another number: each is an error once more
        assert all(errors and errors[-1] < (ROUNDS - 2) * len(SHAPES) for errors, _ in results)
        return
    assert [errors for errors, _ in others] == [[later]] * (world - 1)
    assert own == sorted({MISTAKE, later})


def past_each_other(mesh, name):
    """One rank calls with a list that reduces in the place of one that does not, and so is a call
    ahead: nothing of another step is taken for this one's.
    """
    rank, device = mesh.get_local_rank(), mesh.device_type
    (reduces,), _ = calls_with_lists(mesh, name, SHAPES[1:2])
    whole = flat.value_of((256, 64), special=False).to(device)
    master, start = flat.shards(whole, [0, 128 * 64, 256 * 64], rank)
    reduces_not = [nc.quantize(whole, name)], [master], [start], mesh.get_group()
    for call in (reduces, reduces_not):
        nc.quantize_master_weights(*call)
    if rank == 0:
        assert message_of(reduces_not) is None
    before = reduces[0][0].rowwise_data.clone()
    said = [message_of(reduces) for _ in range(3)]
    return said, same(reduces[0][0].rowwise_data, before)


def test_calls_that_do_not_meet():
    for said, is_unchanged in ranks.run(2, "cpu", past_each_other, "mxfp8_e4m3"):
        assert is_unchanged and all("in different calls" in one for one in said)


def one_after_another(mesh, name):
    """The last rank hands in nonsense in the place of each list, then all hand in each again: what
    they raise.
    """
    with like_a_gpu.hearing():
        calls, values = calls_with_lists(mesh, name, SHAPES[:2])
        for call in calls:
            nc.quantize_master_weights(*call)
        is_other = mesh.get_local_rank() == mesh.size() - 1
        wrong = [3], [None], [None], mesh.get_group()
        said = [message_of(wrong if is_other else call) for call in calls]
        said += [message_of(call) for call in calls]
        return said, again(calls, values, name)


def test_what_is_no_list_again_and_again():
    (others, is_right), (own, own_is_right) = ranks.run(2, "cpu", one_after_another, STORAGES[0])
    assert is_right and own_is_right
    # One error is that all have failed, whatever else there is to hear.
    assert [one is not None for one in others] == [False, False, True, False]
    assert [one is not None for one in own] == [True, True, True, False]


def nonsense(mesh, name, place):
    """The last rank hands in no weights at all."""
    calls, values = calls_with_lists(mesh, name)
    for call in calls:
        nc.quantize_master_weights(*call)
    is_other = mesh.get_local_rank() == mesh.size() - 1
    said = message_of(([3], [None], [None], mesh.get_group()) if is_other else calls[place])
    if mesh.device_type == "cuda":  # whose ranks hear of it with the next call
        later = message_of(calls[place])
        said = said or later
    return said, again(calls, values, name)


@pytest.mark.parametrize("place", range(len(SHAPES)))
def test_what_is_no_list_of_weights(place, device):
    (others, is_right), (own, own_is_right) = ranks.run(2, device, nonsense, STORAGES[0], place)
    assert "failed on rank 1" in others and "TypeError" in own
    assert is_right and own_is_right


def lengths(mesh, name):
    """Integers that each list reduces."""
    calls, _ = calls_with_lists(mesh, name)
    for call in calls:
        nc.quantize_master_weights(*call)
    counted, reduce = [], dist.ProcessGroup.allreduce
    dist.ProcessGroup.allreduce = lambda group, tensors, *rest: (
        counted.append(tensors[0].numel()) or reduce(group, tensors, *rest)
    )
    try:
        for call in calls:
            nc.quantize_master_weights(*call)
    finally:
        dist.ProcessGroup.allreduce = reduce
    return counted


def test_all_reduce_as_much():
    for counted in ranks.run(2, "cpu", lengths, STORAGES[0]):
        assert len(counted) == len(SHAPES) and len(set(counted)) == 1


def in_inference_mode(mesh, name):
    """The first call is, of one list; another list has the reductions of both be longer."""
    calls, values = calls_with_lists(mesh, name, SHAPES[1:3])
    with torch.inference_mode():
        nc.quantize_master_weights(*calls[0])
    return again(calls, values, name) and again(calls, values, name)


def test_a_first_call_in_inference_mode(device):
    assert ranks.run(2, device, in_inference_mode, STORAGES[0]) == [True, True]


def mixed_with_one_that_reduces_nothing(mesh, name):
    """The last rank hands in a weight of each list, the others one list."""
    rank, device = mesh.get_local_rank(), mesh.device_type
    calls, values = calls_with_lists(mesh, name, SHAPES[1:2])
    value = flat.value_of((256, 64), special=False).to(device)
    master, start = flat.shards(value, [0, 128 * 64, 256 * 64], rank)
    alone = [nc.quantize(value, name)], [master], [start], mesh.get_group()
    for call in (alone, *calls):
        nc.quantize_master_weights(*call)
    both = [[*one, *other] for one, other in zip(alone[:3], calls[0][:3], strict=True)]
    said = message_of((*both, mesh.get_group()) if rank else calls[0])
    return said, again(calls, values, name)


def test_a_list_and_one_that_reduces_nothing():
    for said, is_right in ranks.run(2, "cpu", mixed_with_one_that_reduces_nothing, "mxfp8_e4m3"):
        assert said is not None and is_right
