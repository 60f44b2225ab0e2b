"""FusedAdam of wrong options, parameters and gradients: an error, and nothing changes."""

import pytest
import torch
from torch import nn

import narrowcast as nc
from mixed_model import give_gradients, model_of, snapshot, unchanged


@pytest.mark.parametrize(
    ("kind", "words", "options"),
    [
        (ValueError, "state_dtype.*float16", {"state_dtype": torch.float16}),
        (ValueError, "'odd'", {"rounding": "odd"}),
        (ValueError, "group 0: seed is from 0", {"rounding": "stochastic", "seed": -1}),
        (TypeError, "group 0: seed is an int", {"seed": 0.5}),
        (NotImplementedError, "capturable", {"capturable": True}),
        (ValueError, r"group 0: lr -1\.0", {"lr": -1.0}),
        (ValueError, r"betas 0\.9, 1\.0", {"betas": (0.9, 1.0)}),
        (ValueError, "eps nan", {"eps": float("nan")}),
    ],
)
def test_wrong_options(kind, words, options):
    with pytest.raises(kind, match=words):
        nc.FusedAdam([nn.Parameter(torch.ones(2))], **options)


def test_wrong_parameters():
    with pytest.raises(
        TypeError, match=r"parameter 0 of group 0 \(shape \(2,\)\) is torch.float64"
    ):
        nc.FusedAdam([nn.Parameter(torch.ones(2, dtype=torch.float64))])
    with pytest.raises(ValueError, match="meta device"):
        nc.FusedAdam([("one", nn.Parameter(torch.ones(2, device="meta")))])
    with pytest.raises(TypeError, match=r"two is torch\.int8"):
        nc.FusedAdam([("two", nn.Parameter(torch.ones(2, dtype=torch.int8), requires_grad=False))])


def bad_shape(p):
    p.grad.data = torch.ones(3, 64)


def bad_dtype(p):
    p.grad.data = torch.ones(p.shape, dtype=torch.float64)


def bad_layout(p):
    p.grad = None
    p.grad = torch.ones(p.shape).to_sparse()


@pytest.mark.parametrize("index", range(3))
@pytest.mark.parametrize(
    ("spoil", "kind", "words"),
    [
        (bad_shape, ValueError, r"the gradient has shape \[3, 64\], the parameter \[64, 64\]"),
        (bad_dtype, TypeError, "the gradient is Double"),
        (bad_layout, NotImplementedError, "the gradient is sparse"),
    ],
)
def test_wrong_gradients_change_nothing(index, spoil, kind, words):
    model = model_of()
    optimizer = nc.FusedAdam(model.named_parameters())
    give_gradients(model)
    optimizer.step()
    before = snapshot(model, optimizer)
    give_gradients(model, 1)
    spoil(model[index].weight)
    with pytest.raises(kind, match=rf"{index}\.weight: {words}"):
        optimizer.step()
    assert unchanged(before, model, optimizer)
    give_gradients(model, 1)
    optimizer.step()
    assert not unchanged(before, model, optimizer)
