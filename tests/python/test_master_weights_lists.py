"""Several lists of weights of one process group, whose reductions are of different sizes: a rank
that hands in another one than the others is an error on all, and none waits for what never comes.
"""

import contextlib
import itertools

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
    if said is None:  # the others of a GPU hear of it with their next call, which this rank awaits
        said = message_of(known[place])
    return said, again(calls, values, name)


@pytest.mark.parametrize("place", range(len(SHAPES)))
@pytest.mark.parametrize("name", [n for n in STORAGES if not nc.format(n).is_delayed])
def test_a_list_that_the_others_do_not_hand_in(name, place, device):
    for said, is_right in ranks.run(2, device, unknown, name, place):
        assert "DisagreementError" in said
        assert is_right


def in_turn(mesh, name, hear_later):
    """The last rank hands in a list for the first time, while the others go through theirs again
    and again. Returns how many calls of each rank it took until one was an error, and that.
    """
    with like_a_gpu.hearing() if hear_later else contextlib.nullcontext():
        *known, new = (calls_and_values := calls_with_lists(mesh, name))[0]
        for call in known:
            nc.quantize_master_weights(*call)
        is_other = mesh.get_local_rank() == mesh.size() - 1
        turns, said, count = itertools.cycle([new] if is_other else known), None, 0
        while said is None:
            said, count = message_of(next(turns)), count + 1
        # Of the lists that they have met in none has a further error in store.
        return count, said, again(*calls_and_values, name) and again(*calls_and_values, name)


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("hear_later", [False, True])
def test_a_new_list_while_others_take_turns(world, hear_later, device):
    if device == "cuda" and (hear_later or world > torch.cuda.device_count()):
        pytest.skip("for the CPU, or too few GPUs")
    *others, (own, error, is_right) = ranks.run(world, device, in_turn, STORAGES[0], hear_later)
    assert own == 1 and "DisagreementError" in error and is_right
    later = hear_later or device == "cuda"
    for count, said, also_right in others:
        assert count == (len(SHAPES) if later else 1) and also_right
        assert f"rank {world - 1} of the group hands in weights for the first time" in said


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
