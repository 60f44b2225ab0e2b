"""torch's AdamW goes on from a state of FusedAdam's, and FusedAdam from AdamW's."""

import copy

import pytest
import torch
from torch import nn

import narrowcast as nc
from models import one_of_each

KINDS = one_of_each(lambda f: (f.is_delayed, f.columnwise_derived))


def model_for(seed, dtype, format=None):
    torch.manual_seed(seed)
    model = nn.Linear(64, 64, dtype=dtype)
    return model if format is None else nc.convert(model, format)


def step(model, optimizer):
    model(torch.ones(4, 64, dtype=model.bias.dtype)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_there_and_back(kind, dtype):
    """AdamW goes on from a state of FusedAdam's, and keeps the masters that it had: they are no
    longer the weights'.
    """
    ours = model_for(0, dtype, kind)
    optimizer = nc.FusedAdam(ours.parameters(), lr=0.1)
    step(ours, optimizer)
    plain = model_for(1, dtype)
    plain.load_state_dict(ours.state_dict())
    adamw = torch.optim.AdamW(plain.parameters(), lr=0.1)
    adamw.load_state_dict(optimizer.state_dict())
    step(plain, adamw)
    back = model_for(2, dtype, kind)
    optimizer = nc.FusedAdam(back.parameters(), lr=0.1)
    back.load_state_dict(plain.state_dict())
    with pytest.raises(ValueError, match="of_adamw=True"):
        optimizer.load_state_dict(adamw.state_dict())
    optimizer.load_state_dict(copy.deepcopy(adamw.state_dict()), of_adamw=True)
    assert torch.equal(back.weight.master, plain.weight.detach().float())
    assert torch.equal(back.bias, plain.bias)
    state, expected = optimizer.state[back.weight], adamw.state[plain.weight]
    assert int(state["step"]) == 2
    assert torch.equal(state["exp_avg"], expected["exp_avg"].float())
