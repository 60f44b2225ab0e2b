"""Every format: linear layers, some of which share a scale, and stacks of experts equal plain
weights that are quantized by hand, in one process and under fully_shard.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.distributed.fsdp import fully_shard

import narrowcast as nc
import ranks
from by_hand import call_by_hand, own_masters, same, value_of

TESTED_FORMATS = nc.formats()
WIDTH = 128  # whole blocks of every format, also in each half of it
GROUPS = [("q_proj.weight", "k_proj.weight"), ("out.weight",), ("stack",)]
OPTIMIZERS = {
    "AdamW": lambda model: optim.AdamW(model.parameters(), 1e-2, foreach=True),
    "FusedAdam": lambda model: nc.FusedAdam(model.parameters(), 1e-2, weight_decay=0.01),
}


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.q_proj, self.k_proj, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.stack = nn.Parameter(torch.randn(2, 2 * WIDTH, WIDTH) / WIDTH**0.5)

    def forward(self, x):
        x = self.q_proj(x) + 3 * self.k_proj(x)
        ends = torch.tensor([3, len(x)], dtype=torch.int32)
        x = F.grouped_mm(x, self.stack.transpose(-2, -1), offs=ends)
        halves = zip(x.chunk(2, 1), self.stack, strict=True)
        return self.out(sum(F.linear(F.linear(one, w), w.t()) for one, w in halves))


def _converted(format, **options):
    names = [name for names in GROUPS for name in names]
    options = {"parameters": names, "share_scale": [("q_proj", "k_proj")], **options}
    with own_masters():
        return nc.convert(Mixed(), format, filter=None, **options)


def _batch(step):
    return torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(step))


def _train(call, optimizer, steps=3):
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = call(_batch(step)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def _values(model):
    return {name: value_of(one) for name, one in model.named_parameters()}


def _train_by_hand(format, optimizer_of, steps=3):
    model = Mixed()
    call = lambda x: call_by_hand(model, format, GROUPS, x)  # noqa: E731
    return _train(call, optimizer_of(model), steps), _values(model)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_one_process(format, name):
    steps = 1 if nc.format(format).is_delayed and name == "FusedAdam" else 3
    expected, values = _train_by_hand(format, OPTIMIZERS[name], steps)
    model = _converted(format)
    assert _train(model, OPTIMIZERS[name](model), steps) == expected
    assert same(_values(model), values)
