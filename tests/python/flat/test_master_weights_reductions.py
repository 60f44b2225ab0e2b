"""What nc.quantize_master_weights reduces over ranks, of one list of weights and of several, and
how many kernels it launches.
"""

import pytest
import torch
import torch.distributed as dist

import flats
import narrowcast as nc
import ranks
from models import STORAGES
from narrowcast.ranks import reduction


def count_reductions(mesh, name, cuts):
    """Collectives of a call after the first one, and bytes that it reduces."""
    value = flats.value_of((512, 64), special=False)
    weights = [flats.poisoned(value, name, mesh.device_type) for _ in range(3)]
    master, start = flats.shards(value.to(mesh.device_type), cuts, mesh.get_local_rank())
    arguments = weights, [master] * 3, [start] * 3, mesh.get_group()
    counted, all_reduce = [], reduction._all_reduce

    def counting(words, group):
        begin = all_reduce(words, group)
        return lambda: counted.append(words.numel()) or begin()

    reduction._all_reduce = counting
    try:
        nc.quantize_master_weights(*arguments)
    finally:
        reduction._all_reduce = all_reduce
    counted.clear()
    everything = {
        what: getattr(dist, what) for what in ("all_reduce", "all_gather", "all_gather_object")
    }
    for what in everything:
        setattr(dist, what, None)  # whoever calls it fails
    try:
        nc.quantize_master_weights(*arguments)
    finally:
        for what, function in everything.items():
            setattr(dist, what, function)
    assert flats.gather(weights[2], nc.quantize(value.to(mesh.device_type), name))
    return counted


def test_cuts_of_whole_blocks_reduce_amaxes_of_tensors_alone(format, device):
    row = nc.format(format).row_step * 64
    counted = ranks.run(2, device, count_reductions, format, [0, row, 512 * 64])
    spans = nc.format(format).tensor_amax
    assert counted == [[3] if spans else []] * 2


def test_cuts_of_blocks_reduce_once(format, device):
    f = nc.format(format)
    counted = ranks.run(2, device, count_reductions, format, [0, 64 * 101 + 7, 512 * 64])
    blocks = f.rowwise.block != "tensor" or f.rowwise.element_bits < 8
    if not blocks and not f.tensor_amax:
        assert counted == [[], []]
        return
    (most,) = counted[0]
    assert counted == [[most]] * 2
    # Amaxes of a row of blocks, and values of the two rows that a cut is between.
    assert most <= 3 * (1 + 2 * 64 + 2 * 64)


def count_launches(mesh, name):
    """Kernels of narrowcast in a call that casts twenty shards of one format."""
    value = flats.value_of((512, 64), special=False).to(mesh.device_type)
    weights = [flats.poisoned(value, name, mesh.device_type) for _ in range(20)]
    master, start = flats.shards(value, [0, 64 * 101 + 7, 512 * 64], mesh.get_local_rank())
    arguments = weights, [master] * 20, [start] * 20, mesh.get_group()
    nc.quantize_master_weights(*arguments)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        nc.quantize_master_weights(*arguments)
        torch.cuda.synchronize()
    return sum("narrowcast" in event.name for event in profile.events())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", nc.formats())
def test_launches(name):
    """One to collect and one to cast; more only where codes share bytes under a delayed scale."""
    counted = ranks.run(2, "cuda", count_launches, name)
    assert all(1 <= count <= 2 for count in counted), counted


@ranks.on(2)
def test_a_first_call_in_inference_mode(mesh, name=STORAGES[0]):
    """The first call is; later ones are not."""
    value = flats.value_of((64, 128), special=False).to(mesh.device_type)
    weights = [nc.quantize(value, name)]
    master, start = flats.shards(value, [0, 4073, 8192], mesh.get_local_rank())
    with torch.inference_mode():
        nc.quantize_master_weights(weights, [master], [start], mesh.get_group())
    for factor in (2.0, 4.0):
        nc.quantize_master_weights(weights, [factor * master], [start], mesh.get_group())
        assert flats.gather(weights[0], nc.quantize(factor * value, name))
