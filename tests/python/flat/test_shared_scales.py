"""Flat shards of weights with one scale of the tensor: the bytes of one process with the whole."""

import pytest
import torch

import flats
import narrowcast as nc
import ranks
from fused import gradient_of, to_device
from models import BUFFERS, same
from narrowcast import flat
from shared_scales import OPTIONS, SPANNING, STOCHASTIC, Truth, build

TESTED_FORMATS = SPANNING


def weights_of(model):
    """Without masters of their own, and those."""
    every = [*model.parameters()]
    values = [weight.get_high_precision_init_val() for weight in every]
    for weight in every:
        weight.clear_high_precision_init_val()
    return every, values


def trained(mesh, format, options):
    device, rank, group = mesh.device_type, mesh.get_local_rank(), mesh.get_group()
    weights, values = weights_of(build(format, device))
    whole = build(format)
    truth = Truth(whole)
    truth.compare("converted")
    cuts = [[0, (17 + 300 * place) % one.numel(), one.numel()] for place, one in enumerate(values)]
    pairs = [
        flats.shards(value.to(device), of_weight, rank)
        for value, of_weight in zip(values, cuts, strict=True)
    ]
    masters = [one if one is None else torch.nn.Parameter(one) for one, _ in pairs]
    own = [one for one in masters if one is not None]
    optimizers = [nc.FusedAdam(own, **options), nc.FusedAdam(whole.parameters(), **options)]
    flat.fuse(optimizers[0], weights, masters, [start for _, start in pairs], group)

    def compare(what):
        for place, (weight, expected) in enumerate(zip(weights, whole.parameters(), strict=True)):
            on_device = to_device(expected, device)
            assert flats.gather(weight, on_device, group), (what, place)
            assert all(same(getattr(weight, one), getattr(on_device, one)) for one in BUFFERS)
            assert same(weight.history, on_device.history), (what, place)
            flats.poison(weight)

    for step in (1, 2):
        gradients = [gradient_of(v.shape, step, place) for place, v in enumerate(values)]
        for weight, gradient in zip(whole.parameters(), gradients, strict=True):
            weight.grad = gradient
        for master, gradient, of_weight in zip(masters, gradients, cuts, strict=True):
            if master is not None:
                master.grad = flats.shards(gradient, of_weight, rank)[0].to(device)
        for one in optimizers:
            one.step()
        truth.compare(f"step {step}", optimizers[1], step)
        compare(f"step {step}")
    if nc.format(format).is_delayed:
        return  # a cast is a step of its history
    nc.quantize_master_weights(weights, masters, [start for _, start in pairs], group)
    for weight in whole.parameters():
        weight.master.mul_(1)  # is written to
        weight.dequantize()
    compare("cast")


@pytest.mark.ranks
@pytest.mark.parametrize("options", [OPTIONS, STOCHASTIC], ids=["nearest", "stochastic"])
def test_ranks(format, options, device):
    ranks.run(2, device, trained, format, options)


def test_incomplete():
    """A list has all weights that share a scale."""
    weights, values = weights_of(build("nvfp4"))
    with pytest.raises(ValueError, match=r"q_proj\.weight and k_proj\.weight .* have one scale"):
        nc.quantize_master_weights(weights[2:], values[2:], [0] * len(weights[2:]))
