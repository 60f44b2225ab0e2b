"""Several lists of weights of one process group, whose reductions are of different sizes."""

import pytest
import torch

import flats
import narrowcast as nc
import ranks
from models import STORAGES

SHAPES = (192, 64), (64, 64), (512, 64), (64, 128)
TESTED_FORMATS = STORAGES
ROUNDS = 3


def calls_with_lists(mesh, name, shapes=SHAPES):
    """The arguments of a call for each list of one weight, and values."""
    rank, device = mesh.get_local_rank(), mesh.device_type
    calls, values = [], []
    for place, shape in enumerate(shapes):
        value = flats.value_of(shape, seed=place, special=False).to(device)
        inner = (value.numel() * one // mesh.size() - 24 for one in range(1, mesh.size()))
        cuts = [0, *inner, value.numel()]
        master, start = flats.shards(value, cuts, rank)
        calls.append(([nc.quantize(value, name)], [master], [start], mesh.get_group()))
        values.append(value)
    return calls, values


def again(calls, values, name):
    """Whether all ranks that call alike make the bytes of the whole weights."""
    for call in calls:
        nc.quantize_master_weights(*call)
    return all(
        flats.gather(call[0][0], nc.quantize(value, name))
        for call, value in zip(calls, values, strict=True)
    )


def in_turn(mesh, name):
    """Lists in turn, each time of other masters."""
    calls, values = calls_with_lists(mesh, name, (*SHAPES, SHAPES[0]))
    for number in range(ROUNDS):
        powers = [2.0**number * value for value in values]
        of_round = [(weights, [2.0**number * master], *rest) for weights, (master,), *rest in calls]
        assert again(of_round, powers, name), number


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("name", [n for n in STORAGES if not nc.format(n).is_delayed])
def test_lists_take_turns(name, world, device):
    if device == "cuda" and world > torch.cuda.device_count():
        pytest.skip("too few GPUs")
    ranks.run(world, device, in_turn, name)


def in_inference_mode(mesh, name):
    """The first call is, of one list; later ones are not."""
    calls, values = calls_with_lists(mesh, name, SHAPES[1:3])
    with torch.inference_mode():
        nc.quantize_master_weights(*calls[0])
    return again(calls, values, name) and again(calls, values, name)


def test_a_first_call_in_inference_mode(device):
    assert ranks.run(2, device, in_inference_mode, STORAGES[0]) == [True, True]
