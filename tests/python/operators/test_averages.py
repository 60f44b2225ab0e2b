"""Averages of weights (EMA, stochastic weight averaging) are those of masters: equal, to the bit,
to those of a plain model's parameters.
"""

import pytest
import torch
from torch import nn
from torch.optim import swa_utils

import narrowcast as nc
import ranks
from models import GATHERS, assert_quantized, assert_same, build_plain, same, shard

TESTED_FORMATS = GATHERS
STEP = 1e-4  # less than a format tells apart


def custom(averaged, present, number):
    return averaged.float() * 0.9 + present.float() * 0.1


def custom_in_place(averaged, present, number):
    for one, other in zip(averaged, present, strict=True):
        one.mul_(0.9).add_(other, alpha=0.1)


WAYS = {
    "ema": {"avg_fn": swa_utils.get_ema_avg_fn(0.9), "use_buffers": True},
    "ema of many": {"multi_avg_fn": swa_utils.get_ema_multi_avg_fn(0.9)},
    "swa": {},
    "swa of many": {"multi_avg_fn": swa_utils.get_swa_multi_avg_fn()},
    "custom": {"avg_fn": custom},
    "custom in place": {"multi_avg_fn": custom_in_place},
}


def averaged(format, options):
    """The average of a model that moves by small steps, and the model."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(128, 128), nn.BatchNorm1d(128))
    if format is not None:
        nc.convert(model, format)
    average = swa_utils.AveragedModel(model, **options)
    weight = model[0].weight
    begin = getattr(weight, "master", weight).detach().clone()
    for step in range(20):
        with torch.no_grad():
            weight.copy_(begin + STEP * step)
        average.update_parameters(model)
    swa_utils.update_bn([torch.ones(4, 128)], average)
    return average.module[0].weight, weight


@pytest.mark.parametrize("way", WAYS)
def test_averaged_model(format, way):
    average, weight = averaged(format, WAYS[way])
    plain, present = averaged(None, WAYS[way])
    assert same(average.master, plain)
    assert same(weight.master, present)
    assert_quantized(average.detach(), plain.detach())


@pytest.mark.parametrize("way", WAYS)
def test_without_masters(format, way):
    """A frozen weight is its own average, whatever rounds. One that moves all the same, as by an
    optimizer that has masters itself, is averaged by its decoded values, in float32.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(128, 128), nn.Linear(128, 128)).requires_grad_(False)
    nc.convert(model, format)
    plain, moved = nn.Linear(128, 128, bias=False), model[1].weight
    average = swa_utils.AveragedModel(model, **WAYS[way])
    plain_average = swa_utils.AveragedModel(plain, **WAYS[way])
    for _ in range(3):
        with torch.no_grad():
            moved.copy_(torch.randn(128, 128))
            plain.weight.copy_(moved.dequantize())
        average.update_parameters(model)
        plain_average.update_parameters(plain)
    assert average.module[0].weight.master is None
    assert_same(average.module[0].weight, model[0].weight)
    assert same(average.module[1].weight.master, plain_average.module.weight)


@pytest.mark.old_way("arithmetic in place is refused")
def test_elsewhere_arithmetic_is_of_masters(format):
    """Out of place; in place it is refused, but for lerp_ between weights with masters."""
    layers = [nc.convert(nn.Linear(128, 128, bias=False), format) for _ in range(2)]
    one, other = (layer.weight.detach() for layer in layers)
    averaged(format, {})
    assert same(one + other, one.master + other.master)
    expected = torch.lerp(one.master, other.master, 0.25)
    one.lerp_(other, 0.25)
    assert same(one.master, expected)
    for refused in (
        lambda: one.lerp_(torch.ones(128, 128), 0.5),
        lambda: one.lerp_(nc.quantize(torch.ones(128, 128), format), 0.5),
        lambda: one.mul_(0.9),
    ):
        with pytest.raises(NotImplementedError, match=r"in place.* optimizer .* is nc\.FusedAdam"):
            refused()
    assert same(one.master, expected)


def of_shards(mesh, format):
    """An average by hand, of shards; the bytes are those of one process."""
    model = shard(nc.convert(build_plain(format), format), mesh)
    average = {name: p.detach().clone() for name, p in model.named_parameters()}
    expected = {name: p.full_tensor().detach().float() for name, p in model.named_parameters()}
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.full_like(p, STEP))
        torch._foreach_lerp_([*average.values()], [*model.parameters()], 0.1)
        for name, p in model.named_parameters():
            p.copy_(average[name])
            assert same(p.full_tensor(), expected[name].lerp(torch.tensor(STEP), 0.1)), name
        model(torch.ones(1, model.width))


def test_shards(format):
    ranks.run(2, "cpu", of_shards, format)


def test_swapped_by_data(format):
    """As Lightning's callback swaps the average and the model for a validation."""
    average, weight = averaged(format, WAYS["ema"])
    masters = average.master.clone(), weight.master.clone()
    kept = average.data.clone()
    average.data.copy_(weight.data)
    weight.data.copy_(kept)
    assert same(average.master, masters[1])
    assert same(weight.master, masters[0])
    assert_quantized(weight.detach(), masters[0])
