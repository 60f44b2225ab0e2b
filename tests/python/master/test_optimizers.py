"""Any optimizer trains weights that are their own masters as plain ones that are quantized by hand:
losses and values are equal to the bit.
"""

import pytest
import torch
from torch import optim

import narrowcast as nc
from by_hand import FORMATS, by_hand, converted, same, train, values, weights
from internals import is_stale
from models import assert_quantized

TESTED_FORMATS = FORMATS


def _muon(model):
    every = [*model.parameters()]
    matrices = [one for one in every if one.dim() == 2]
    rest = [one for one in every if one.dim() != 2]
    return [optim.Muon(matrices, 1e-2), optim.AdamW(rest, 1e-2)]


def _of(kind, *arguments, **options):
    return lambda model: [kind(model.parameters(), *arguments, **options)]


OPTIMIZERS = {
    "AdamW for-loop": _of(optim.AdamW, 1e-2, foreach=False),
    "AdamW foreach": _of(optim.AdamW, 1e-2, foreach=True),
    "AdamW fused": _of(optim.AdamW, 1e-2, fused=True),
    "AdamW amsgrad": _of(optim.AdamW, 1e-2, amsgrad=True),
    "SGD momentum": _of(optim.SGD, 1e-1, momentum=0.9),
    "SGD fused": _of(optim.SGD, 1e-1, momentum=0.9, fused=True),
    "Muon": _muon,
    "Adafactor": _of(optim.Adafactor, 1e-2),
    "Adadelta": _of(optim.Adadelta),
    "Adagrad": _of(optim.Adagrad),
    "Adamax": _of(optim.Adamax),
    "ASGD": _of(optim.ASGD),
    "NAdam": _of(optim.NAdam),
    "RAdam": _of(optim.RAdam),
    "RMSprop": _of(optim.RMSprop),
    "Rprop": _of(optim.Rprop),
    "LBFGS": _of(optim.LBFGS, 1e-1, max_iter=3),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_torchs_optimizers(format, name):
    sizes = (64, 64, 32) if name == "Muon" else (256, 512, 64)  # its products are slow on a CPU
    reference, model = by_hand(format, *sizes), converted(format, *sizes)
    expected = train(reference, OPTIMIZERS[name](reference), width=sizes[0])
    assert train(model, OPTIMIZERS[name](model), width=sizes[0]) == expected
    assert same(values(model), values(reference))


FUSED = {"lr": 1e-2, "betas": (0.9, 0.999), "weight_decay": 0.01}


def test_fused_adam(format):
    """Its state has no second master, and its step leaves fresh bytes."""
    reference, model = by_hand(format), converted(format)
    optimizers = [nc.FusedAdam(one.parameters(), **FUSED) for one in (reference, model)]
    assert train(model, optimizers[1:]) == train(reference, optimizers[:1])
    assert same(values(model), values(reference))
    for mine in weights(model):
        assert not is_stale(mine)
        assert_quantized(mine, mine.value)
        assert sorted(optimizers[1].state[mine]) == ["exp_avg", "exp_avg_sq", "step"]


def test_one_optimizer_goes_on_where_another_stopped():
    format = FORMATS[0]
    reference, model = by_hand(format), converted(format)
    every = [
        [nc.FusedAdam(one.parameters(), **FUSED), optim.SGD(one.parameters(), 0.1)]
        for one in (reference, model)
    ]
    for steps, number in enumerate((0, 1, 0, 1)):
        losses = [
            train(one, of[number : number + 1], 2, first=steps)
            for one, of in zip((reference, model), every, strict=True)
        ]
        assert losses[0] == losses[1]
    assert same(values(model), values(reference))


@pytest.mark.parametrize("step", ["torch", "fused"])
def test_a_step_between_a_forward_and_its_backward_is_an_error(step):
    model = converted(FORMATS[0])
    kind = optim.SGD if step == "torch" else nc.FusedAdam
    optimizer = kind(model.parameters(), lr=0.1)
    loss = model(torch.ones(8, 256)).sum()
    loss.backward(retain_graph=True)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("order", ["model first", "optimizer first"])
def test_resumed_in_both_orders(format, order):
    """No weight is left with another value than the checkpoint's, beside biases that have it; also
    where the optimizer's state has an older value, as such of masters in the state had.
    """
    model, other = converted(format, 64, 64, 32), converted(format, 64, 64, 32, seed=1)
    optimizers = [nc.FusedAdam(one.parameters(), **FUSED) for one in (model, other)]
    for one, own in zip((model, other), optimizers, strict=True):
        train(one, [own], 1, width=64)
    state = optimizers[0].state_dict()
    for one in state["state"].values():
        one["master"] = torch.zeros_like(one["exp_avg"])
    loads = [(other, model.state_dict()), (optimizers[1], state)]
    for target, saved in loads if order == "model first" else reversed(loads):
        target.load_state_dict(saved)
    assert same(values(model), values(other))
    pairs = zip((model, other), optimizers, strict=True)
    losses = [train(one, [own], 2, 1, width=64) for one, own in pairs]
    assert losses[0] == losses[1]
